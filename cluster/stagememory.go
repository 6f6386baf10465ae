package cluster

// ListMemory returns how many bytes a list of $push, and a set of $addToSet, may hold.
func (p *Params) ListMemory() (push, addToSet int64) {
	return p.Int("internalQueryMaxPushBytes"), p.Int("internalQueryMaxAddToSetBytes")
}

// StageMemory returns the number of bytes that a stage may hold before it spills to disk or, if it may not spill,
// fails.
func (p *Params) StageMemory(stage string) int64 {
	switch stage {
	case "$sort":
		return p.Int("internalQueryMaxBlockingSortMemoryUsageBytes")
	case "$group":
		return p.Int("internalDocumentSourceGroupMaxMemoryBytes")
	case "$bucketAuto":
		return p.Int("internalDocumentSourceBucketAutoMaxMemoryBytes")
	case "$setWindowFields":
		return p.Int("internalDocumentSourceSetWindowFieldsMaxMemoryBytes")
	case "$graphLookup":
		return p.Int("internalDocumentSourceGraphLookupMaxMemoryBytes")
	case "$densify":
		return p.Int("internalDocumentSourceDensifyMaxMemoryBytes")
	}
	return 100 << 20
}
