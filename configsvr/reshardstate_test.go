package configsvr

import (
	"reflect"
	"testing"

	"github.com/shoaldb/shoal/cluster/msg"
	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// The next primary reads the whole state that this one has stored: without the donors it would commit without documents.
func TestReshardStateIsReadAsStored(t *testing.T) {
	for _, d := range []*reshardState{
		{id: [16]byte{1}, uuid: [16]byte{2}, ns: "d.c", temp: "d.system.resharding.x", primary: "s1", tracked: true, state: reshardCloning, started: 5,
			want: msg.Reshard{Provenance: msg.ReshardCollection, Key: value.Doc(value.F("a", value.NewInt32(1))), Chunks: 4, Force: true, Zones: [][]byte{value.Doc(value.F("zone", value.NewString("z")))}},
			key:  value.Doc(value.F("a", value.NewInt32(1))), oldKey: value.Doc(value.F("_id", value.NewString("hashed"))), collation: value.Doc(value.F("locale", value.NewString("de"))),
			reshardShards: reshardShards{donors: []string{"s1", "s2"}, recipients: []string{"s1", "s3"}, idle: []string{"s4"}}, cloneAt: 77, reshardSize: reshardSize{8, 9}, reshardMarks: reshardMarks{force: true, notified: true, finishing: true}, series: value.Doc(value.F("timeField", value.NewString("t")))},
		{id: [16]byte{1}, uuid: [16]byte{2}, ns: "d.c", temp: "d.system.resharding.x", state: reshardQuiesced, key: idKey,
			want: msg.Reshard{Provenance: msg.MoveCollection, To: "s2"}, failed: mongoerr.New(mongoerr.ReshardCollectionAborted, "aborted")},
	} {
		got, err := readReshardState(d.doc())
		if err != nil {
			t.Fatal(err)
		}
		if !reflect.DeepEqual(got, d) {
			t.Errorf("stored %+v\nread %+v", d, got)
		}
	}
	lost := reshardState{id: [16]byte{1}, ns: "d.c", temp: "d.t", state: reshardCommitting, key: idKey, want: msg.Reshard{Provenance: msg.MoveCollection, To: "s2"}}
	if _, err := readReshardState(lost.doc()); err == nil {
		t.Error("a state without donors is read")
	}
}
