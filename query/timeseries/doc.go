// Package timeseries packs measurements into buckets and takes them out again.
//
// A write groups measurements by their metaField (NormalMeta) and time, and stores each group by Pack; a read meets a
// bucket in $_internalUnpackBucket, which steps through Reader.Next; BucketFilter turns a filter of measurements into one
// that buckets with no match fail, so that indexes of the bucket collection serve it.
//
// Invariants:
//
//  1. A bucket's measurements are in order of time, and all have its meta value (none where the bucket has none).
//  2. control.min.<timeField> is not above the time of any measurement of the bucket, control.max.<timeField> not below.
//  3. The seconds of a bucket's _id are those of control.min.<timeField>, held within 32 bits.
//  4. What Pack writes, Reader gives back field by field: the time first, then meta, then the rest as first written.
package timeseries
