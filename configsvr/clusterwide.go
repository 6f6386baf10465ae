package configsvr

import (
	"bytes"
	"context"
	"errors"
	"slices"
	"time"

	"github.com/shoaldb/shoal/cluster"
	"github.com/shoaldb/shoal/cluster/msg"
	"github.com/shoaldb/shoal/command"
	"github.com/shoaldb/shoal/query/value"
)

// The config server's settings are the cluster's, and are coordinated (coordinators.go). A shard that was restored from old files, or whose parameters a router has sent (setQuerySettings)
// and has ended meanwhile, has others: the primary compares its settings with the shards' after its step-up and whenever its own settings or the list of shards have changed, and makes shards that differ store them.

// settingsPoll is the interval at which the primary checks whether its settings have changed. It acts on a change that it has seen twice: until then a
// router may still be sending it. A setting that changes and changes back within the interval looks unchanged, although a router may have ended before the
// shards had the second change: shards that had the settings are asked again after settingsRecheck intervals.
const (
	settingsPoll    = 2 * time.Second
	settingsRecheck = 4
)

// RunSettings keeps the shards' settings the same as the cluster's until ctx ends.
func (m *Manager) RunSettings(ctx context.Context) {
	tick := time.NewTicker(settingsPoll)
	defer tick.Stop()
	var k settingsKeeper
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			m.keepSettings(ctx, &k)
		}
	}
}

// settingsKeeper is the state of RunSettings between two checks.
type settingsKeeper struct {
	seen    []byte // the settings at the last check
	settled bool   // all shards had them
	checks  int    // since then
}

func (m *Manager) keepSettings(ctx context.Context, k *settingsKeeper) {
	if m.settings.active() {
		return // the shards have them when it has ended
	}
	now, err := m.clusterSettings(ctx)
	if err != nil {
		return
	}
	switch {
	case !bytes.Equal(now.raw, k.seen):
		k.seen, k.settled = now.raw, false
	case !k.settled:
		k.settled, k.checks = m.sendSettings(ctx, now) == nil, 0
	default:
		if k.checks++; k.checks == settingsRecheck {
			behind, err := m.shardsBehind(ctx, now)
			k.settled, k.checks = err == nil && len(behind) == 0, 0
		}
	}
}

// clusterSettings are the settings of a node, and on the config server the shards that should have the same.
type clusterSettings struct {
	params  [][]byte // config.clusterParameters
	blocked []byte   // the document that blocks users' writes; nil for none
	version []byte   // the feature compatibility version's document; nil for the initial one
	shards  []*cluster.Shard
	raw     []byte // all of it, for comparison
}

// settingsAt reads a node's settings.
func settingsAt(ctx context.Context, p cluster.Peer) (s *clusterSettings, err error) {
	s = &clusterSettings{}
	if s.params, err = (cluster.Find{NS: "config.clusterParameters"}).All(ctx, p); err != nil {
		return nil, err
	}
	for ns, to := range map[string]*[]byte{"config.user_writes_critical_sections": &s.blocked, "admin.system.version": &s.version} {
		id := ""
		if to == &s.version {
			id = "featureCompatibilityVersion"
		}
		docs, err := cluster.Find{NS: ns, Filter: value.Doc(fld("_id", str(id)))}.All(ctx, p)
		if err != nil {
			return nil, err
		}
		if len(docs) > 0 {
			*to = docs[0]
		}
	}
	return s, nil
}

// clusterSettings reads the config server's settings.
func (m *Manager) clusterSettings(ctx context.Context) (*clusterSettings, error) {
	s, err := settingsAt(ctx, m.local)
	if err != nil {
		return nil, err
	}
	if s.shards, err = m.registry.All(ctx); err != nil {
		return nil, err
	}
	s.raw = s.all()
	for _, shard := range s.shards {
		s.raw = append(append(s.raw, shard.ID...), 0)
	}
	return s, nil
}

// all returns the settings of a node for comparison.
func (s *clusterSettings) all() []byte {
	return bytes.Join(append(slices.Clone(s.params), s.blocked, s.version), nil)
}

// shardBehind is a shard whose settings are not the cluster's, and the commands that correct them.
type shardBehind struct {
	shard *cluster.Shard
	cmds  []msg.Message
}

// shardsBehind returns the shards whose settings differ; with an error, those of the shards that were reached.
func (m *Manager) shardsBehind(ctx context.Context, s *clusterSettings) (behind []shardBehind, err error) {
	ctx, cancel := context.WithTimeout(ctx, 5*settingsPoll)
	defer cancel()
	var failed []error
	for _, shard := range s.shards {
		if shard.ID == cluster.ConfigShardID {
			continue
		}
		has, err := settingsAt(ctx, shard.Peer)
		if err != nil {
			failed = append(failed, err)
		} else if cmds := s.differences(has); len(cmds) > 0 {
			behind = append(behind, shardBehind{shard, cmds})
		}
	}
	return behind, errors.Join(failed...)
}

// sendSettings has each shard store the settings in which it differs.
func (m *Manager) sendSettings(ctx context.Context, s *clusterSettings) error {
	behind, err := m.shardsBehind(ctx, s)
	if len(behind) > 0 { // the comparison may have taken a while
		if now, err := m.clusterSettings(ctx); err != nil || !bytes.Equal(now.raw, s.raw) {
			return errors.Join(errors.New("the settings have changed"), err)
		}
	}
	failed := []error{err}
	ctx, cancel := context.WithTimeout(ctx, 5*settingsPoll)
	defer cancel()
	for _, b := range behind {
		for _, cmd := range b.cmds {
			sent := msg.Doc(cmd)
			_, err := cluster.RunWrite(ctx, b.shard.Peer, sent)
			if m.settings.refused.note(b.shard.ID, sent, err); err != nil {
				failed = append(failed, err)
			}
		}
	}
	return errors.Join(failed...)
}

// differences returns the commands that make a shard's settings the cluster's. A parameter that only the shard has stays: nothing removes one.
func (s *clusterSettings) differences(has *clusterSettings) (cmds []msg.Message) {
	there := make(map[string][]byte)
	for _, p := range has.params {
		there[value.Lookup(p, "_id").Str()] = p
	}
	for _, p := range s.params {
		name := value.Lookup(p, "_id").Str()
		own := there[name]
		switch {
		case own != nil && bytes.Equal(own, p):
		case name != command.AuditConfig:
			cmds = append(cmds, &msg.SetClusterParameter{Param: p}) // a shard ignores what is older than its own
		case own == nil || !bytes.Equal(parameterValue(own), parameterValue(p)): // each node has its own time for this one
			cmds = append(cmds, &msg.SetOneParameter{Param: value.Doc(fld(name, value.NewDocument(parameterValue(p))))})
		}
	}
	cmds = append(cmds, s.blockOf(has)...)
	if v := value.Lookup(s.version, "version").Str(); v != "" && v != value.Lookup(has.version, "version").Str() {
		cmds = append(cmds, &msg.SetFeatureVersion{Version: v, Confirm: true})
	}
	return cmds
}

// blockOf returns the commands that make a shard block users, or let them through, as the cluster does; none if it does already.
func (s *clusterSettings) blockOf(has *clusterSettings) (cmds []msg.Message) {
	blocks := func(of *clusterSettings, field string) bool { return value.Lookup(of.blocked, field).Truthy() }
	part := func(of *clusterSettings, global bool, phase string) {
		cmds = append(cmds, &msg.ShardSetUserWriteBlock{Global: global, Reason: value.Lookup(of.blocked, "blockUserWritesReason").Str(), Phase: phase})
	}
	switch {
	case s.blocked == nil && has.blocked != nil:
		part(has, false, msg.CompleteBlock)
	case s.blocked == nil || bytes.Equal(s.blocked, has.blocked):
	default:
		part(s, true, msg.PrepareBlock)
		if blocks(s, "blockUserWrites") {
			part(s, true, msg.CompleteBlock)
		}
	}
	return cmds
}

// parameterValue returns a stored parameter without its name and time.
func parameterValue(doc []byte) []byte {
	var f []value.Field
	for k, v := range value.Elements(doc) {
		if k != "_id" && k != "clusterParameterTime" {
			f = append(f, fld(k, v))
		}
	}
	return value.Doc(f...)
}
