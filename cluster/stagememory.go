package cluster

// stageMemory names the parameters that limit what stages of pipelines hold.
var stageMemory = map[string]string{
	"$sort":            "internalQueryMaxBlockingSortMemoryUsageBytes",
	"$group":           "internalDocumentSourceGroupMaxMemoryBytes",
	"$bucketAuto":      "internalDocumentSourceBucketAutoMaxMemoryBytes",
	"$setWindowFields": "internalDocumentSourceSetWindowFieldsMaxMemoryBytes",
	"$graphLookup":     "internalDocumentSourceGraphLookupMaxMemoryBytes",
	"$densify":         "internalDocumentSourceDensifyMaxMemoryBytes",
}

// StageMemory is how many bytes a stage may hold before it goes to disk.
func (p *Params) StageMemory(stage string) int64 {
	if name, ok := stageMemory[stage]; ok {
		return p.Int(name)
	}
	return 100 << 20
}
