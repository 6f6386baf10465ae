package cluster

// stageMemory names the parameters that limit the memory of pipeline stages.
var stageMemory = map[string]string{
	"$sort":            "internalQueryMaxBlockingSortMemoryUsageBytes",
	"$group":           "internalDocumentSourceGroupMaxMemoryBytes",
	"$bucketAuto":      "internalDocumentSourceBucketAutoMaxMemoryBytes",
	"$setWindowFields": "internalDocumentSourceSetWindowFieldsMaxMemoryBytes",
	"$graphLookup":     "internalDocumentSourceGraphLookupMaxMemoryBytes",
	"$densify":         "internalDocumentSourceDensifyMaxMemoryBytes",
}

// ListMemory returns how many bytes a list of $push, and a set of $addToSet, may hold.
func (p *Params) ListMemory() (push, addToSet int64) {
	return p.Int("internalQueryMaxPushBytes"), p.Int("internalQueryMaxAddToSetBytes")
}

// StageMemory returns how many bytes a stage may hold before it spills to disk.
func (p *Params) StageMemory(stage string) int64 {
	if name, ok := stageMemory[stage]; ok {
		return p.Int(name)
	}
	return 100 << 20
}
