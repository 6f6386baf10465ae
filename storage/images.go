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

// Pre-images are the states of documents before an update or a delete, kept for change streams. The unit that
// makes the change stores them in PreImagesNS, a collection clustered by
//
//	_id: {nsUUID: the collection, ts: of the change's entry in the oplog, applyOpsIndex: its place in its transaction}
//
// The timestamp is known only at the commit. Until then ts holds the ordinal of the unit's oplog entry, which
// stamp replaces by the timestamp, in the key and in the document. If a transaction is sent ahead in chunks, so
// are its images; its unit therefore reserves a timestamp for them, which its last oplog entry names (ImagesTime).

// PreImagesNS is the namespace of the stored pre-images.
const PreImagesNS = "config.system.preimages"

// ImagesTime is the field of a transaction's last oplog entry that holds the ts of its pre-images, if that is not
// the entry's own.
const ImagesTime = "preImagesTs"

// unitImages tracks the pre-images that a unit has stored.
type unitImages struct {
	table    catalog.Ident
	reserved Timestamp // timestamp reserved by a transaction that is sent ahead; 0 for none
}

// imageTSAt is the offset of the timestamp in an image's document: after the document's length, the element _id,
// its length, and the element nsUUID.
const imageTSAt = 4 + (1 + 4) + 4 + (1 + 7) + (4 + 1 + 16) + (1 + 3)

// ImageID returns the _id of a pre-image.
func ImageID(uuid catalog.UUID, ts Timestamp, index int64) []byte {
	return value.Doc(value.F("nsUUID", uuid.Value()), value.F("ts", ts.Value()), value.F("applyOpsIndex", value.NewInt64(index)))
}

// ImageRecord returns the RecordID of a pre-image.
func ImageRecord(id []byte) RecordID {
	key, _ := keystring.Append(nil, nil, value.NewDocument(id), false, nil)
	return key
}

// PreImage reads a stored pre-image; it returns nil if there is none.
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

// keepImage stores the state of a document before the change that the unit logs next. A document that moves to
// another shard does not change.
func (u *UnitOfWork) keepImage(c *catalog.Collection, doc []byte) error {
	if !c.Images || !u.logs(c) || u.log.migrate {
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

// imagesCollection returns the collection of pre-images, creating it when it is first needed. It is not in the
// oplog: its documents belong to the changes that are.
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

// time returns the timestamp of an image of a unit that commits at `at` and logs that many entries.
func (m *unitImages) time(txn bool, ordinal, at Timestamp, entries int) Timestamp {
	switch {
	case m.reserved != 0:
		return m.reserved
	case txn:
		return at
	}
	return at - Timestamp(max(1, entries)) + ordinal + 1
}

// holds reports whether a staged key is that of an image without a timestamp.
func (m *unitImages) holds(kind pebble.InternalKeyKind, k, v []byte) bool {
	return m != nil && identOf(k) == m.table && kind == pebble.InternalKeyKindSet && len(v) > imageTSAt+8
}

// setImageTime writes the timestamp into an image and its key, in place.
func setImageTime(k, v []byte, ts Timestamp) {
	binary.LittleEndian.PutUint64(v[imageTSAt:], uint64(ts))
	copy(k[identLen:], ImageRecord(value.Lookup(v, "_id").Doc()))
}

func imageTime(v []byte) Timestamp { return Timestamp(binary.LittleEndian.Uint64(v[imageTSAt:])) }

// reserveImages reserves the timestamp for the images of a transaction that is sent ahead: that of a unit without any
// effect, so that no other unit gets it.
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
