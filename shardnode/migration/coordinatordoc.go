package migration

import (
	"github.com/shoaldb/shoal/cluster"
	"github.com/shoaldb/shoal/command"
	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/shardnode/statedoc"
	"github.com/shoaldb/shoal/storage/catalog"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// coordinatorDoc is the stored state of a migration from this shard, from before it begins until it is
// concluded.
type coordinatorDoc struct {
	id       [16]byte
	ns       string
	uuid     catalog.UUID
	from, to string
	min, max []byte
	// version is the chunk's version before the migration; versioned is false if it is unknown.
	version   cluster.ChunkVersion
	versioned bool
	lsid      [16]byte // the migration's own session
	attempts  int64    // its transaction number: how many primaries have taken the migration up, after the one that began it
	decision  string   // committed, aborted, or empty while it is not known
}

// coordinatorDocs returns the entries of config.migrationCoordinators.
func coordinatorDocs(store statedoc.Store) statedoc.Collection[*coordinatorDoc] {
	return statedoc.In(store, coordinatorsNS, readCoordinatorDoc)
}

// ID implements statedoc.Doc.
func (d *coordinatorDoc) ID() value.Value { return value.NewBinary(4, d.id[:]) }

// Doc implements statedoc.Doc.
func (d *coordinatorDoc) Doc() []byte {
	moving := value.Doc(value.F("min", value.NewDocument(d.min)), value.F("max", value.NewDocument(d.max)))
	f := []value.Field{
		value.F("_id", d.ID()), value.F("nss", value.NewString(d.ns)), value.F("collectionUuid", d.uuid.Value()),
		value.F("donorShardId", value.NewString(d.from)), value.F("recipientShardId", value.NewString(d.to)), value.F("range", value.NewDocument(moving)),
		value.F("lsid", value.NewDocument(value.Doc(value.F("id", value.NewBinary(4, d.lsid[:]))))), value.F("txnNumber", value.NewInt64(d.attempts)),
	}
	if d.versioned {
		f = append(f, value.F("preMigrationChunkVersion", value.NewDocument(d.version.Doc())))
	}
	if d.decision != "" {
		f = append(f, value.F("decision", value.NewString(d.decision)))
	}
	return value.Doc(f...)
}

// unreadMigration returns what the documents of all versions have from one that readCoordinatorDoc refuses: the collection, the donor and the decision, if there is one. The donor is empty in a
// document that is not a migration's.
func unreadMigration(doc []byte) (ns, donor, decision string) {
	ns, donor = value.Lookup(doc, "nss").Str(), value.Lookup(doc, "donorShardId").Str()
	if _, ok := catalog.UUIDFrom(value.Lookup(doc, "_id")); !ok || command.CheckFullName(ns) != nil {
		return "", "", ""
	}
	switch how := value.Lookup(doc, "decision").Str(); how {
	case "committed", "aborted":
		decision = how
	}
	return ns, donor, decision
}

func readCoordinatorDoc(doc []byte) (*coordinatorDoc, error) {
	moving := value.LookupDoc(doc, "range")
	d := &coordinatorDoc{
		ns: value.Lookup(doc, "nss").Str(), from: value.Lookup(doc, "donorShardId").Str(), to: value.Lookup(doc, "recipientShardId").Str(),
		min: value.LookupDoc(moving, "min"), max: value.LookupDoc(moving, "max"), decision: value.Lookup(doc, "decision").Str(),
	}
	odd := func(what string) error { return mongoerr.New(mongoerr.BadValue, what) }
	id, ok := catalog.UUIDFrom(value.Lookup(doc, "_id"))
	if !ok {
		return nil, odd("its _id is not a UUID")
	}
	d.id = id
	if d.uuid, ok = catalog.UUIDFrom(value.Lookup(doc, "collectionUuid")); !ok || command.CheckFullName(d.ns) != nil {
		return nil, odd("it has no collection")
	}
	if d.to == "" || len(d.min) == 0 || len(d.max) == 0 {
		return nil, odd("it has no range or no recipient")
	}
	if how := value.Lookup(doc, "decision"); !how.IsMissing() && d.decision != "committed" && d.decision != "aborted" {
		return nil, odd("its decision is neither committed nor aborted")
	}
	if id := value.Lookup(value.LookupDoc(doc, "lsid"), "id"); len(id.Bytes()) == len(d.lsid) { // earlier versions stored none
		copy(d.lsid[:], id.Bytes())
	}
	d.attempts, _ = value.Lookup(doc, "txnNumber").AsInt64()
	var err error
	d.version, err = cluster.ParseChunkVersion(value.Lookup(doc, "preMigrationChunkVersion"))
	d.versioned = err == nil
	return d, nil
}
