package storage

import (
	"context"
	"encoding/binary"

	"github.com/cockroachdb/pebble/v2"
	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/storage/catalog"
	"github.com/shoaldb/shoal/storage/keystring"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// Pre-images are documents as they were before an update or a delete, for change streams. The unit that makes the change
// stores them in PreImagesNS, a collection that is clustered by
//
//	_id: {nsUUID: the collection, ts: of the change's entry in the oplog, applyOpsIndex: its place in its transaction}
//
// The timestamp is known at the commit only. Until then ts holds the ordinal of the unit's oplog entry, and stamp puts the
// timestamp over it, in the key and in the document. Of a transaction that is sent ahead in chunks the images go ahead too,
// so its unit reserves a timestamp for them, which its last oplog entry names (ImagesTime).

// PreImagesNS is the namespace of the stored pre-images.
const PreImagesNS = "config.system.preimages"

// ImagesTime is the field of a transaction's last oplog entry that tells the ts of its pre-images, where that is not the
// entry's own.
const ImagesTime = "preImagesTs"

// unitImages is what a unit knows of the pre-images it has stored.
type unitImages struct {
	table    catalog.Ident
	reserved Timestamp // of a transaction that is sent ahead; 0 for none
}

// imageTSAt is where an image's document has the timestamp: behind the document's length, the element _id, its length, and
// the element nsUUID.
const imageTSAt = 4 + (1 + 4) + 4 + (1 + 7) + (4 + 1 + 16) + (1 + 3)

// ImageID is the _id of a pre-image.
func ImageID(uuid catalog.UUID, ts Timestamp, index int64) []byte {
	return value.Doc(value.F("nsUUID", uuid.Value()), value.F("ts", ts.Value()), value.F("applyOpsIndex", value.NewInt64(index)))
}

// ImageRecord is the RecordID of a pre-image.
func ImageRecord(id []byte) RecordID {
	key, _ := keystring.Append(nil, nil, value.NewDocument(id), false, nil)
	return key
}

// PreImage reads a stored pre-image; nil where there is none.
func (s *Snapshot) PreImage(uuid catalog.UUID, ts Timestamp, index int64) ([]byte, error) {
	c := s.Catalog().Lookup(PreImagesNS)
	if c == nil {
		return nil, nil
	}
	doc, ok, err := s.Get(c, ImageRecord(ImageID(uuid, ts, index)))
	if err != nil || !ok {
		return nil, err
	}
	return append([]byte(nil), value.Lookup(doc, "preImage").Doc()...), nil
}

// keepImage stores a document as it was before the change that the unit logs next. What moves to another shard did not change.
func (u *UnitOfWork) keepImage(c *catalog.Collection, doc []byte) error {
	if !c.Images || !c.Replicated || u.log.migrate {
		return nil
	}
	t, err := u.e.imagesCollection()
	if err != nil {
		return err
	}
	if err := u.depend(t); err != nil {
		return err
	}
	if u.log.images == nil {
		u.log.images = &unitImages{table: t.Ident}
	}
	ordinal, index := Timestamp(u.log.count()), int64(0)
	if txn := u.log.txn; txn != nil {
		ordinal, index = 0, int64(txn.count)
	}
	id := ImageID(c.UUID, ordinal, index)
	image := value.Doc(value.F("_id", value.NewDocument(id)), value.F("operationTime", value.NewTime(u.e.opts.Clock())), value.F("preImage", value.NewDocument(doc)))
	u.put(t.Ident, ImageRecord(id), image)
	u.addDelta(t.Ident, t.Counters, 1, int64(len(image)))
	u.Accompanies(t)
	return nil
}

// imagesCollection is the collection of the pre-images; the first to need it makes it. It has no entries in the oplog: its
// documents belong to the changes that do.
func (e *Engine) imagesCollection() (*catalog.Collection, error) {
	for {
		if c := e.Catalog().Lookup(PreImagesNS); c != nil {
			return c, nil
		}
		u := e.NewUnitOfWork(nil)
		_, err := u.CreateCollection(CollectionSpec{NS: PreImagesNS, Unreplicated: true, Options: value.Doc(value.F("clusteredIndex", value.NewBool(true)))})
		if err == nil {
			_, err = e.commitUnit(context.Background(), u, false)
		}
		u.Rollback()
		if err != nil && mongoerr.CodeOf(err) != mongoerr.NamespaceExists {
			return nil, err
		}
	}
}

// time is the timestamp of an image of a unit that commits at a time, whose log has so many entries.
func (m *unitImages) time(txn bool, ordinal, at Timestamp, entries int) Timestamp {
	switch {
	case m.reserved != 0:
		return m.reserved
	case txn:
		return at
	}
	return at - Timestamp(max(1, entries)) + ordinal + 1
}

// holds tells whether a staged key is that of an image which has no timestamp yet.
func (m *unitImages) holds(kind pebble.InternalKeyKind, k, v []byte) bool {
	return m != nil && identOf(k) == m.table && kind == pebble.InternalKeyKindSet && len(v) > imageTSAt+8
}

// setImageTime puts the timestamp into an image and its key, in place.
func setImageTime(k, v []byte, ts Timestamp) {
	binary.LittleEndian.PutUint64(v[imageTSAt:], uint64(ts))
	copy(k[identLen:], ImageRecord(value.Lookup(v, "_id").Doc()))
}

func imageTime(v []byte) Timestamp { return Timestamp(binary.LittleEndian.Uint64(v[imageTSAt:])) }

// reserveImages gives the images of a transaction that is sent ahead their timestamp: that of a unit without any effect, so
// that nobody else has it.
func (s *stager) reserveImages() error {
	m := s.u.log.images
	if m == nil || m.reserved != 0 || s.u.log.txn == nil {
		return nil
	}
	p := s.e.NewUnitOfWork(nil)
	p.gen = s.u.gen
	p.stageRaw(func(b *pebble.Batch) error { return b.Set(metaKey(metaNext), s.e.nextNumbers(), nil) })
	if _, err := s.e.queueUnit(context.WithoutCancel(s.ctx), p, false); err != nil {
		return err
	}
	m.reserved = p.wait.at
	return nil
}
