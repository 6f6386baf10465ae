package settings

import (
	"github.com/shoaldb/shoal/cluster"
	"github.com/shoaldb/shoal/cluster/msg"
	"github.com/shoaldb/shoal/command"
	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// FeatureVersion is the feature compatibility version of a new server.
const FeatureVersion = "8.2"

// lastVersion is the feature compatibility version to which a server can be downgraded.
const lastVersion = "8.0"

const fcvHelp = "See https://docs.mongodb.com/manual/release-notes/8.0-compatibility/#feature-compatibility."

func (st *Settings) fcvSpecs() []command.Spec {
	set := command.AdminOnly("setFeatureCompatibilityVersion", st.runSetFCV, command.Opt("confirm", command.TSafeBool))
	set.WriteConcern, set.ArgTypes = true, command.TString
	return []command.Spec{set}
}

func (st *Settings) runSetFCV(op *command.Op, dst []byte) ([]byte, error) {
	if err := st.checkNotOnShard(op, false, mongoerr.IllegalOperation, "setFeatureCompatibilityVersion cannot be run on a shard: run it on mongos"); err != nil {
		return dst, err
	}
	if err := st.checkWriteConcern(op); err != nil {
		return dst, err
	}
	want := op.Req.Cmd.Str()
	if want != FeatureVersion && want != lastVersion {
		return dst, mongoerr.Newf(4926900, "Invalid feature compatibility version value '%s'; expected '%s' or '%s'. %s", want, lastVersion, FeatureVersion, fcvHelp)
	}
	if !op.Bool("confirm") {
		return dst, mongoerr.Newf(7369100, "Once you have changed the feature compatibility version, going back may need the help of support. Set 'confirm: true' to run {setFeatureCompatibilityVersion: '%s'} all the same.", want)
	}
	if is, err := st.coordinated(op, &msg.SetFeatureVersion{Version: want, Confirm: true}); is {
		return dst, err
	}
	decided := func(doc []byte) bool {
		v := value.Lookup(doc, "version")
		return v.Str() == want || v.T != value.String && want == FeatureVersion
	}
	return dst, st.asDecided(op, cluster.Find{NS: versionNS, Filter: value.Doc(value.F("_id", value.NewString(FeatureVersionID)))}, decided, func(bool) error {
		cur := value.Lookup(st.Params.Get("featureCompatibilityVersion").Value().Doc(), "version")
		if cur.Str() == want {
			return nil
		}
		return st.storeFCV(op, want)
	})
}

// storeFCV changes the version in admin.system.version and in the parameter that shows it.
func (st *Settings) storeFCV(op *command.Op, version string) error {
	v := value.F("version", value.NewString(version))
	if err := st.Docs.Put(op, versionNS, value.Doc(value.F("_id", value.NewString(FeatureVersionID)), v)); err != nil {
		return err
	}
	st.Params.Store("featureCompatibilityVersion", value.NewDocument(value.Doc(v)))
	return nil
}

// versionNS is the collection of its document, whose _id is FeatureVersionID.
const versionNS = "admin.system.version"

const FeatureVersionID = "featureCompatibilityVersion"

// loadFCV reads the stored version when the node opens.
func (st *Settings) loadFCV() error {
	doc, err := st.Docs.Get(versionNS, value.NewString(FeatureVersionID))
	if err != nil || doc == nil || st.Params == nil {
		return err
	}
	if v := value.Lookup(doc, "version"); v.T == value.String {
		st.Params.Store("featureCompatibilityVersion", value.NewDocument(value.Doc(value.F("version", value.NewString(v.Str())))))
	}
	return nil
}
