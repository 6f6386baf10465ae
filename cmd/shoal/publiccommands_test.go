package main

import (
	"slices"
	"testing"

	"github.com/shoaldb/shoal/cluster/msg"
	"github.com/shoaldb/shoal/command"
)

// In commands that are open to clients, too, nodes send each other only fields that the table of commands has: another one would be
// refused, or ignored where the command is lenient.
func TestNodesKeepToThePublicCommands(t *testing.T) {
	a := assembleHere(t)
	check := func(name string, fields []string) {
		t.Helper()
		found := false
		for _, s := range a.services {
			if s.Role&command.Shard == 0 {
				continue
			}
			for _, spec := range s.Table.Specs() {
				if spec.Name != name {
					continue
				}
				found = true
				for _, f := range fields {
					if !slices.ContainsFunc(spec.Fields, func(x command.Field) bool { return x.Name == f }) {
						t.Errorf("nodes send %s.%s, which its row lacks", name, f)
					}
				}
			}
		}
		if !found {
			t.Errorf("shards have no command %s", name)
		}
	}
	for _, m := range []msg.Message{
		new(msg.DataSize), new(msg.SplitVector), new(msg.ListCollections), new(msg.ListIndexes), new(msg.ListDatabases), new(msg.Find), new(msg.GetMore), new(msg.KillCursors),
		new(msg.Count), new(msg.Aggregate), new(msg.Explain), new(msg.Create), new(msg.Drop), new(msg.Rename), new(msg.CreateIndexes), new(msg.DropIndex), new(msg.Insert),
		new(msg.Update), new(msg.FindAndModify), new(msg.Delete), new(msg.CollStats), new(msg.SetStatus), new(msg.SetConfig), new(msg.SplitChunk),
		new(msg.Hello), new(msg.Ping), new(msg.Authenticate), new(msg.SASLStart), new(msg.SASLContinue), new(msg.RefreshSessions), new(msg.KillSessions), new(msg.KillAllSessions),
		new(msg.KillSessionsByPattern), new(msg.KillOp), new(msg.GetClusterParameter), new(msg.CommitTransaction), new(msg.AbortTransaction), new(msg.CreateUser),
	} {
		d := msg.Describe(m)
		var fields []string
		for _, f := range d.Fields {
			if !msg.Generic([]byte(f.Name)) {
				fields = append(fields, f.Name)
			}
		}
		check(d.Name, fields)
	}
}
