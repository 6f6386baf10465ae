package cluster

import (
	"testing"

	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

func cv(major, minor uint32, epoch byte, ts uint64) ChunkVersion {
	return ChunkVersion{Major: major, Minor: minor, Epoch: Epoch{epoch}, Timestamp: ts}
}

func TestChunkVersionCompare(t *testing.T) {
	for _, c := range []struct {
		name string
		a, b ChunkVersion
		want Order
	}{
		{"same", cv(2, 1, 1, 5), cv(2, 1, 1, 5), Same},
		{"minor", cv(2, 1, 1, 5), cv(2, 2, 1, 5), Older},
		{"major beats minor", cv(3, 0, 1, 5), cv(2, 9, 1, 5), Newer},
		{"collection dropped and made again", cv(9, 0, 1, 5), cv(1, 0, 2, 6), Older},
		{"a new incarnation is newer whatever its major", cv(1, 0, 2, 6), cv(9, 0, 1, 5), Newer},
		{"epochs of one timestamp", cv(1, 0, 2, 6), cv(1, 0, 1, 6), Incomparable},
		{"unsharded against sharded", Unsharded, cv(1, 0, 1, 5), Incomparable},
		{"unsharded", Unsharded, Unsharded, Same},
	} {
		if got := c.a.Compare(c.b); got != c.want {
			t.Errorf("%s: got %d, want %d", c.name, got, c.want)
		}
	}
}

func TestCheckShardVersion(t *testing.T) {
	for _, c := range []struct {
		name             string
		received, wanted ChunkVersion
		ok               bool
	}{
		{"equal", cv(2, 1, 1, 5), cv(2, 1, 1, 5), true},
		{"a split moved nothing", cv(2, 1, 1, 5), cv(2, 7, 1, 5), true},
		{"a chunk moved away", cv(2, 1, 1, 5), cv(3, 1, 1, 5), false},
		{"the sender knows more", cv(3, 1, 1, 5), cv(2, 1, 1, 5), false},
		{"the last chunk left", cv(2, 1, 1, 5), cv(0, 0, 1, 5), false},
		{"sharded meanwhile", Unsharded, cv(1, 0, 1, 5), false},
		{"dropped meanwhile", cv(1, 0, 1, 5), Unsharded, false},
		{"dropped and made again", cv(1, 0, 1, 5), cv(1, 0, 2, 6), false},
		{"ignored", Ignored, cv(3, 1, 1, 5), true},
		{"both unsharded", Unsharded, Unsharded, true},
	} {
		err := CheckShardVersion("db.c", c.received, c.wanted, "s0")
		if (err == nil) != c.ok {
			t.Errorf("%s: got %v", c.name, err)
		}
		if err == nil {
			continue
		}
		e := mongoerr.From(err)
		info, ok := ParseStaleInfo(e.Details)
		if e.Code != mongoerr.StaleConfig || !ok || info.Received != c.received || info.Wanted != c.wanted || info.Shard != "s0" {
			t.Errorf("%s: the error does not contain the versions: %v %+v", c.name, e, info)
		}
	}
}

func TestVersionsRoundTrip(t *testing.T) {
	v := cv(7, 3, 9, Timestamp(100, 2))
	got, err := ParseChunkVersion(value.NewDocument(v.Doc()))
	if err != nil || got != v {
		t.Fatalf("chunk version: %v %v", got, err)
	}
	d := DatabaseVersion{UUID: NewUUID(), Timestamp: Timestamp(5, 1), LastMod: 4}
	db, err := ParseDatabaseVersion(value.NewDocument(d.Doc()))
	if err != nil || db != d {
		t.Fatalf("database version: %v %v", db, err)
	}
	for _, bad := range []value.Value{value.NewInt32(1), value.NewDocument(value.Doc()), value.NewDocument(value.Doc(value.F("e", value.NewInt32(1))))} {
		if _, err := ParseChunkVersion(bad); err == nil {
			t.Errorf("a broken chunk version was read")
		}
		if _, err := ParseDatabaseVersion(bad); err == nil {
			t.Errorf("a broken database version was read")
		}
	}
}

func TestDatabaseVersionCompare(t *testing.T) {
	a := DatabaseVersion{UUID: [16]byte{1}, Timestamp: 5, LastMod: 1}
	moved, again := a, DatabaseVersion{UUID: [16]byte{2}, Timestamp: 9, LastMod: 1}
	moved.LastMod = 2
	other := a
	other.UUID = [16]byte{7}
	for _, c := range []struct {
		a, b DatabaseVersion
		want Order
	}{{a, a, Same}, {a, moved, Older}, {again, moved, Newer}, {a, other, Incomparable}} {
		if got := c.a.Compare(c.b); got != c.want {
			t.Errorf("%v against %v: got %d, want %d", c.a, c.b, got, c.want)
		}
	}
}
