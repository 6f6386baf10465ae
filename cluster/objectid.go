package cluster

import "github.com/shoaldb/shoal/query/value"

// NewObjectID returns a new ObjectId.
func NewObjectID() [12]byte { return value.GenerateObjectID() }
