package command

import "github.com/shoaldb/shoal/wire/mongoerr"

// searchSpecs returns the commands for search indexes, which need a separate service that does not exist here.
func searchSpecs() []Spec {
	none := func(_ *Op, dst []byte) ([]byte, error) {
		return dst, mongoerr.New(mongoerr.SearchNotEnabled, mongoerr.SearchIndexesText)
	}
	var out []Spec
	for _, name := range []string{"createSearchIndexes", "updateSearchIndex", "dropSearchIndex", "listSearchIndexes"} {
		out = append(out, Spec{Name: name, Roles: All, Kind: DDL, ArgTypes: TAny, Lenient: true, Run: none})
	}
	return out
}
