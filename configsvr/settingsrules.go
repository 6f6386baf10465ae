package configsvr

import (
	"context"

	"github.com/shoaldb/shoal/cluster"
	"github.com/shoaldb/shoal/cluster/msg"
	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// settingsRules is the validator of config.settings, which the real server has had since 5.1: a setting that would have no effect, such as a chunk size
// outside 1 to 1024 MB, is refused with DocumentValidationFailure. Times of day are not checked here: if the balancer cannot read those of an activeWindow, it does
// nothing, logs that in config.actionlog, and balancerStatus fails.
func settingsRules() value.Value {
	of := func(id string, more ...value.Field) []value.Field {
		return append([]value.Field{fld("_id", doc(fld("enum", arr(str(id)))))}, more...)
	}
	rule := func(properties []value.Field, more ...value.Field) value.Value {
		return doc(append([]value.Field{fld("properties", doc(properties...))}, more...)...)
	}
	number := doc(fld("bsonType", str("number")), fld("minimum", value.NewInt32(1)), fld("maximum", value.NewInt32(1024)))
	boolean := doc(fld("bsonType", str("bool")))
	modes := doc(fld("enum", arr(str("full"), str("autoSplitOnly"), str("off"))))
	window := doc(fld("bsonType", str("object")), fld("required", arr(str("start"), str("stop"))))
	throttle := doc(fld("oneOf", arr(boolean, doc(fld("bsonType", str("object"))))))
	return doc(fld("$jsonSchema", doc(fld("oneOf", arr(
		rule(of("chunksize", fld("value", number)), fld("additionalProperties", value.NewBool(false))),
		rule(of("balancer", fld("mode", modes), fld("stopped", boolean), fld("activeWindow", window), fld("_secondaryThrottle", throttle))),
		rule(of("autosplit", fld("enabled", boolean))),
		rule(of("automerge", fld("enabled", boolean))),
		rule([]value.Field{fld("_id", doc(fld("enum", arr(str("ReadWriteConcernDefaults"), str("audit")))))}),
	)))))
}

// initSettings creates config.settings with its validator, or adds that to a collection of an earlier version. Existing documents stay.
func (m *Manager) initSettings(ctx context.Context) error {
	rules := fld("validator", settingsRules())
	_, err := cluster.Run(ctx, m.local, msg.Doc(&msg.Create{DB: "config", Coll: "settings"}, rules))
	if mongoerr.CodeOf(err) == mongoerr.NamespaceExists {
		_, err = cluster.Run(ctx, m.local, msg.Doc(&msg.CollMod{DB: "config", Coll: "settings"}, rules))
	}
	return err
}
