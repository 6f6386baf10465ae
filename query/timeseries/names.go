package timeseries

import "strings"

// BucketsPrefix is what the name of the collection of a time series' buckets begins with.
const BucketsPrefix = "system.buckets."

// BucketsOf returns the namespace of the buckets of a time series collection.
func BucketsOf(ns string) string {
	db, coll, _ := strings.Cut(ns, ".")
	return db + "." + BucketsPrefix + coll
}

// SeriesOf returns the name of the time series collection whose buckets a namespace is for.
func SeriesOf(buckets string) (ns string, ok bool) {
	db, coll, _ := strings.Cut(buckets, ".")
	coll, ok = strings.CutPrefix(coll, BucketsPrefix)
	return db + "." + coll, ok
}
