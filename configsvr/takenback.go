package configsvr

import (
	"bytes"
	"context"

	"github.com/shoaldb/shoal/cluster"
	"github.com/shoaldb/shoal/cluster/msg"
	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// A shard may refuse a cluster parameter, a feature compatibility version or that users are blocked for good, when others have stored it. The operation then gives all nodes the former setting again, the config server
// first, so that a shard refuses a message of the way forward that comes late, and is answered with the shard's error: no two nodes differ, unless a shard refuses the former setting, too. What it goes back to is stored with its first step, and why with the
// first step back.
//
// Rejected: going on forward until the shard has it. A shard of an earlier version, which does not know a parameter, would have each other setClusterParameter refused until it is upgraded.

// takenBack is what an operation has to know to take its setting back.
type takenBack struct {
	cmd []byte          // sets the former setting; nil for operations that are not taken back
	why *mongoerr.Error // nil unless it is taken back
}

// shareStep is the step in which shards get the setting that the config server has.
const shareStep = "storeOnShards"

// changed reports whether a node may have the setting, or a part of it.
func (r *settingRun) changed() bool {
	return r.step != "storeOnConfigServer" || r.kind == "setUserWriteBlockMode" // which has prepared all nodes before
}

// fields returns the part of the state document.
func (b *takenBack) fields() (f []value.Field) {
	if b.cmd != nil {
		f = append(f, fld("former", value.NewDocument(b.cmd)))
	}
	if b.why != nil {
		f = append(f, fld("abortReason", doc(fld("code", value.NewInt32(int32(b.why.Code))), fld("errmsg", str(b.why.Message)))))
	}
	return f
}

// readTakenBack reads it.
func readTakenBack(raw []byte) (b takenBack) {
	if cmd := value.LookupDoc(raw, "former"); cmd != nil {
		b.cmd = bytes.Clone(cmd)
	}
	if why := value.LookupDoc(raw, "abortReason"); why != nil {
		code, _ := value.Lookup(why, "code").AsInt64()
		b.why = mongoerr.New(mongoerr.Code(code), value.Lookup(why, "errmsg").Str())
	}
	return b
}

// before returns the command that sets what the config server has now; nil if the operation is not taken back.
func (r *settingRun) before(ctx context.Context) ([]byte, error) {
	switch r.kind {
	case "setClusterParameter":
		var set msg.SetOneParameter
		if err := msg.Parse(r.cmd, &set); err != nil {
			return nil, err
		}
		name := nameIn(set.Param)
		has, err := parameterAt(ctx, r.m.local, name)
		if err != nil {
			return nil, err
		}
		return msg.Doc(&msg.SetOneParameter{Param: value.Doc(fld(name, value.NewDocument(has)))}), nil
	case "setFeatureCompatibilityVersion":
		has, err := settingsAt(ctx, r.m.local)
		if err != nil || has.version == nil {
			return nil, err
		}
		return msg.Doc(&msg.SetFeatureVersion{Version: value.Lookup(has.version, "version").Str(), Confirm: true}), nil
	case "setUserWriteBlockMode":
		var set msg.SetUserWriteBlock
		if err := msg.Parse(r.cmd, &set); err != nil || !set.Global {
			return nil, err
		}
		has, err := settingsAt(ctx, r.m.local)
		if err != nil || has.blocked != nil {
			return nil, err
		}
		return msg.Doc(&msg.ShardSetUserWriteBlock{Reason: set.Reason, Phase: msg.CompleteBlock}), nil
	}
	return nil, nil
}

// nameIn returns the name of the parameter in {name: value}.
func nameIn(param []byte) string {
	it := value.Walk(param)
	name, _, _ := it.Next()
	return string(name)
}

// parameterAt returns the value of a cluster parameter on a node.
func parameterAt(ctx context.Context, p cluster.Peer, name string) ([]byte, error) {
	reply, err := cluster.Run(ctx, p, msg.Doc(&msg.GetClusterParameter{Name: name}))
	if err != nil {
		return nil, err
	}
	for _, v := range value.Values(value.Lookup(reply, "clusterParameters").Doc()) {
		return parameterValue(v.Doc()), nil
	}
	return nil, mongoerr.Newf(mongoerr.NoSuchKey, "Unknown Cluster Parameter '%s'", name)
}

// stepsBack returns the steps that take the setting back.
func (r *settingRun) stepsBack(ctx context.Context) []step {
	send := func() error { return r.onShards(ctx, r.back.cmd) }
	if r.kind == "setClusterParameter" {
		send = func() error { return r.sendParameter(ctx) }
	}
	return []step{{"restoreOnConfigServer", func() error { return r.onConfigServer(ctx, r.back.cmd) }}, {"restoreOnShards", send}}
}

// admits returns an error of a shard that was sent the setting. A shard may refuse the former one for good, too: RunSettings, which compares it with the config server, goes on asking it, and other operations of the kind
// are not held up. Until the shard accepts it, it differs from the others, which is logged (refusals).
func (b *takenBack) admits(err error) error {
	if b.why != nil && !cluster.Transient(err) {
		return nil
	}
	return err
}
