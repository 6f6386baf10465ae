package command

import (
	"strconv"
	"strings"

	"github.com/shoaldb/shoal/cluster"
	"github.com/shoaldb/shoal/query/value"
)

// AppendServer appends serverInfo and serverParameters, which explain shows of the server that a client has asked, and
// a router of each shard, too. params may be nil.
func AppendServer(dst []byte, host string, params *cluster.Params) []byte {
	port := int64(27017)
	if i := strings.LastIndexByte(host, ':'); i >= 0 {
		if p, err := strconv.ParseInt(host[i+1:], 10, 32); err == nil {
			host, port = host[:i], p
		}
	}
	dst = value.Append(dst, "serverInfo", value.NewDocument(value.Doc(
		value.F("host", value.NewString(host)), value.F("port", value.NewInt32(int32(port))),
		value.F("version", value.NewString(Version)), value.F("gitVersion", value.NewString(ThisBuild().GitVersion())))))
	const limit = 100 << 20
	dst, m := value.BeginKey(dst, value.Document, "serverParameters")
	for _, p := range []struct {
		name string
		v    int32 // used if this server does not have the parameter
	}{
		{"internalQueryFacetBufferSizeBytes", limit}, {"internalQueryFacetMaxOutputDocSizeBytes", limit},
		{"internalLookupStageIntermediateDocumentMaxSizeBytes", limit}, {"internalDocumentSourceGroupMaxMemoryBytes", limit},
		{"internalQueryMaxBlockingSortMemoryUsageBytes", limit}, {"internalQueryProhibitBlockingMergeOnMongoS", 0},
		{"internalQueryMaxAddToSetBytes", limit}, {"internalDocumentSourceSetWindowFieldsMaxMemoryBytes", limit},
	} {
		v := value.NewInt32(p.v)
		if params != nil {
			if q, ok := params.Lookup(p.name); ok {
				if v = q.Value(); v.T == value.Int64 && int64(int32(q.Int())) == q.Int() {
					v = value.NewInt32(int32(q.Int()))
				}
			}
		}
		dst = value.Append(dst, p.name, v)
	}
	dst = value.Append(dst, "internalQueryFrameworkControl", value.NewString(QueryFramework(params)))
	dst = value.Append(dst, "internalQueryPlannerIgnoreIndexWithCollationForRegex", value.NewInt32(1))
	return value.End(dst, m)
}

// QueryFramework returns the engine for queries that have no settings of their own.
func QueryFramework(p *cluster.Params) string {
	if p == nil {
		return "trySbeRestricted"
	}
	return p.Get("internalQueryFrameworkControl").Value().Str()
}
