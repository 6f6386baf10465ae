// Package timeseries packs measurements into buckets and unpacks them.
//
// A write groups measurements by their metaField (NormalMeta) and time, and stores each group by Pack; a read unpacks a
// bucket in $_internalUnpackBucket, with Reader.Next; BucketFilter derives from a filter on measurements one that
// excludes only buckets without a match, so that indexes of the bucket collection can be used.
//
// Invariants:
//
//  1. A bucket's measurements are in order of time, and all have its meta value (none if the bucket has none).
//  2. control.min.<timeField> is not above the time of any measurement of the bucket, control.max.<timeField> not below.
//  3. The seconds of a bucket's _id are those of control.min.<timeField>, limited to 32 bits.
//  4. Reader returns what Pack has written field by field: the time first, then meta, then the rest in the order of first
//     occurrence.
package timeseries
