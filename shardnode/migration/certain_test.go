package migration

import (
	"context"
	"testing"

	"github.com/shoaldb/shoal/cluster"
	"github.com/shoaldb/shoal/cluster/msg"
	"github.com/shoaldb/shoal/command"
	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/storage"
	"github.com/shoaldb/shoal/storage/catalog"
	"github.com/shoaldb/shoal/storage/lock"
	"github.com/shoaldb/shoal/wire"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// A participant does not say that it has done its part because it finds nothing to do, unless it is the primary: one that was deposed used to answer that a section had ended which its successor has.
func TestParticipantsAreCertainThatNothingIsLeft(t *testing.T) {
	m := newTestManager(t, &fakeNode{}, &fakeSessions{})
	for _, s := range m.shardSpecs() {
		if !s.Primary() {
			t.Errorf("%s is executed by secondaries", s.Name)
		}
	}
	m.Service.Table.Add(m.shardSpecs()...)
	config := cluster.LocalPeer(func(_ context.Context, _ *wire.Message, dst []byte) ([]byte, error) { return dst, nil })
	m.state.Registry = cluster.NewRegistry(config, nil, nil)
	section := &sectionDoc{name: "d.c", why: "drop", owner: "b", id: catalog.UUID{1}, reads: true}
	deposed := mongoerr.New(mongoerr.NotWritablePrimary, "not primary")
	uuid := catalog.UUID{2}
	send := func(what msg.Message) mongoerr.Code {
		t.Helper()
		body, mark := value.Begin(nil)
		for k, v := range value.Elements(msg.Doc(what)) {
			body = value.Append(body, k, v)
		}
		body = value.End(value.Append(body, "$db", value.NewString("admin")), mark)
		reply, err := m.Service.Direct(t.Context(), command.OwnClient(), &wire.Message{Body: body}, nil)
		if err != nil {
			t.Fatal(err)
		}
		return mongoerr.Code(value.SafeInt64(value.Lookup(reply, "code")))
	}
	key := value.Doc(value.F("_id", value.NewInt32(1)))
	nothing := []msg.Message{
		&msg.ParticipantBlock{NS: "d.c", Type: msg.Unblock, Command: "drop", Owner: "b", ID: section.id},
		&msg.NotifyShardingEvent{NS: "d.c", UUID: section.id, Event: value.Doc()},
		&msg.RecvChunkReleaseCritSec{Migration: msg.Migration{NS: "d.c", ID: section.id}},
		&msg.CreateCollectionParticipant{NS: "d.there", UUID: uuid},
		&msg.ValidateShardKey{NS: "d.there", UUID: uuid, Key: key, Confirm: true},
	}
	u := m.Engine.NewUnitOfWork(nil)
	if _, err := u.CreateCollection(storage.CollectionSpec{NS: "d.there", UUID: uuid, Options: value.Doc()}); err != nil {
		t.Fatal(err)
	}
	if _, err := m.Engine.Commit(t.Context(), u, false); err != nil {
		t.Fatal(err)
	}
	m.Linearize = func(context.Context) error { return deposed }
	for _, what := range nothing {
		if code := send(what); code != deposed.Code {
			t.Errorf("%T of a deposed primary: code %d", what, code)
		}
	}
	asked := 0
	m.Linearize = func(context.Context) error { asked++; return nil }
	for _, what := range nothing {
		if code := send(what); code != 0 {
			t.Errorf("%T of the primary: code %d", what, code)
		}
	}
	if asked != len(nothing) {
		t.Errorf("%d of %d answers are of a primary", asked, len(nothing))
	}

	// What arrives while it is made sure is found.
	m.Linearize = func(ctx context.Context) error { return m.sections().enter(ctx, []*sectionDoc{section}, nil, nil) }
	if code := send(nothing[0]); code != 0 {
		t.Errorf("a section that arrives late: code %d", code)
	}
	if _, there, err := sectionDocs(m.Docs).Get(section.ID()); err != nil || there {
		t.Errorf("it is left: %v, %v", there, err)
	}
}

// An owner of chunks, which keeps what it has of a collection of a database that moves, makes sure that it is the primary without the collection's lock: writers waited for the other members of its set.
func TestOwnersAreCertainWithoutTheLock(t *testing.T) {
	m := newTestManager(t, &fakeNode{}, &fakeSessions{})
	m.Service.Table.Add(m.shardSpecs()...)
	uuid, section := catalog.UUID{2}, &sectionDoc{name: "d", why: "movePrimary", owner: "b", id: catalog.UUID{1}}
	m.state.Registry = cluster.NewRegistry(listOf(value.Doc(value.F("uuid", uuid.Value()), value.F("shard", value.NewString("a")))), nil, nil)
	m.state.enterDDL(section)
	entered, _ := m.state.sectionOf(section.name, section.id)
	entered.confirmed = true // its owner is not there
	u := m.Engine.NewUnitOfWork(nil)
	if _, err := u.CreateCollection(storage.CollectionSpec{NS: "d.c", UUID: uuid, Options: value.Doc()}); err != nil {
		t.Fatal(err)
	}
	if _, err := m.Engine.Commit(t.Context(), u, false); err != nil {
		t.Fatal(err)
	}
	asked := 0
	m.Linearize = func(ctx context.Context) error {
		asked++
		unlock, err := m.Locks.CollectionWithin(ctx, "d.c", lock.IX, 0)
		if err == nil {
			unlock()
		}
		return err
	}
	var fields []value.Field
	for k, v := range value.Elements(msg.Doc(&msg.CreateCollectionParticipant{NS: "d.c", UUID: uuid, Section: (*[16]byte)(&section.id)})) {
		if k != "$db" {
			fields = append(fields, value.F(k, v))
		}
	}
	run(t, m, fields...)
	if asked != 1 {
		t.Errorf("it made sure %d times", asked)
	}
}
