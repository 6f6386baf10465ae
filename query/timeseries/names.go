package timeseries

import "strings"

// BucketsPrefix is the prefix of the name of a time series' bucket collection.
const BucketsPrefix = "system.buckets."

// BucketsOf returns the namespace of the buckets of a time series collection.
func BucketsOf(ns string) string {
	db, coll, _ := strings.Cut(ns, ".")
	return db + "." + BucketsPrefix + coll
}

// SeriesOf returns the namespace of the time series collection whose buckets are in the given one.
func SeriesOf(buckets string) (ns string, ok bool) {
	db, coll, _ := strings.Cut(buckets, ".")
	coll, ok = strings.CutPrefix(coll, BucketsPrefix)
	return db + "." + coll, ok
}
