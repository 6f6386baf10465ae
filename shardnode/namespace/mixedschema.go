package namespace

import (
	"strings"

	"github.com/shoaldb/shoal/query/timeseries"
	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/storage/catalog"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// MixedSchema is the argument of collMod that lets a time series have buckets whose measurements have values of several kinds in
// one field, as servers before 5.2 wrote them.
const MixedSchema = "timeseriesBucketsMayHaveMixedSchemaData"

// mixedSchemaSetting is its form in the collection's options, so that dumps contain it (SERVER-91195).
const mixedSchemaSetting = "app_metadata=(" + MixedSchema + "=true)"

// SetMixedSchema lets the buckets with these options have fields with values of several kinds.
func (o Options) SetMixedSchema() {
	if mixedSchema(o["storageEngine"]) {
		return
	}
	setting := mixedSchemaSetting
	if have := value.Lookup(value.Lookup(o["storageEngine"].Doc(), "wiredTiger").Doc(), "configString").Str(); have != "" {
		setting = have + "," + setting
	}
	o.Set("storageEngine", value.NewDocument(value.Doc(value.F("wiredTiger", value.NewDocument(value.Doc(value.F("configString", value.NewString(setting))))))))
}

// MayHaveMixedSchema reports whether the buckets of c may have fields with values of several kinds.
func MayHaveMixedSchema(c *catalog.Collection) bool {
	return MixedSchemaIn(c.Options)
}

// MixedSchemaIn is MayHaveMixedSchema for the options of buckets.
func MixedSchemaIn(options []byte) bool { return mixedSchema(value.Lookup(options, "storageEngine")) }

func mixedSchema(engine value.Value) bool {
	return strings.Contains(value.Lookup(value.Lookup(engine.Doc(), "wiredTiger").Doc(), "configString").Str(), MixedSchema+"=true")
}

// CheckBucketSchema refuses a bucket that a client writes by itself, as mongorestore does, if it has values of several kinds in a
// field and c may not have such buckets.
func CheckBucketSchema(c *catalog.Collection, bucket []byte) error {
	if !IsBuckets(c.NS) || MayHaveMixedSchema(c) {
		return nil
	}
	if _, uniform := timeseries.SchemaOf(bucket); uniform {
		return nil
	}
	return mongoerr.Newf(mongoerr.CannotInsertTimeseriesBucketsWithMixedSchema,
		"Cannot write time-series bucket containing mixed schema data, please run collMod with %s and retry your insert", MixedSchema)
}
