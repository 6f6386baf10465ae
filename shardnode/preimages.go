package shardnode

import (
	"context"
	"time"

	"github.com/shoaldb/shoal/query/changestream"
	"github.com/shoaldb/shoal/query/update"
	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/replication"
	"github.com/shoaldb/shoal/storage"
	"github.com/shoaldb/shoal/storage/catalog"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// images adds to an event the pre-image and the post-image that its stream asks for, using the stored
// pre-image.
func (e *eventStream) images(dst []byte, ev *changestream.Event) ([]byte, error) {
	before, after := e.spec.FullDocumentBeforeChange != "off", ev.Type == "update" && e.spec.ImagesAfter()
	if !before && !after {
		return dst, nil
	}
	image, err := e.preImage(ev)
	if err != nil {
		return nil, err
	}
	if before {
		if image == nil && e.spec.FullDocumentBeforeChange == "required" {
			return nil, e.imageMissing("pre-image for all update, delete and replace events", "pre-image", ev)
		}
		dst = value.Append(dst, "fullDocumentBeforeChange", documentOrNull(image))
	}
	if !after {
		return dst, nil
	}
	if image == nil && e.spec.FullDocument == "required" {
		return nil, e.imageMissing("post-image for all update events", "post-image", ev)
	}
	if image != nil {
		if image, err = update.ApplyDiff(image, ev.Diff()); err != nil {
			return nil, err
		}
	}
	return value.Append(dst, "fullDocument", documentOrNull(image)), nil
}

func documentOrNull(doc []byte) value.Value {
	if doc == nil {
		return value.NewNull()
	}
	return value.NewDocument(doc)
}

func (e *eventStream) imageMissing(required, what string, ev *changestream.Event) error {
	return mongoerr.Newf(mongoerr.NoMatchingDocument, "Change stream was configured to require a %s, but the %s was not found for event: %s",
		required, what, value.ShowDoc(ev.Document(e.form)))
}

// preImage returns the document before an event; nil if it was not stored, or is no longer kept.
func (e *eventStream) preImage(ev *changestream.Event) ([]byte, error) {
	uuid, ok := catalog.UUIDFrom(ev.UUID)
	if !ok {
		return nil, nil
	}
	s := e.n.Engine.MajoritySnapshot()
	defer s.Release()
	return s.PreImage(uuid, storage.Timestamp(ev.ImageTime(storage.ImagesTime)), int64(ev.Index))
}

// imageRemover deletes pre-images that have expired (changeStreamOptions) or are older than the oplog. It is a
// primary-only service.
type imageRemover struct{ n *Node }

func imageService(n *Node) replication.Service {
	return replication.Service{Name: "ChangeStreamExpiredPreImagesRemover", Run: imageRemover{n}.run}
}

func (r imageRemover) run(ctx context.Context, _ int64) {
	seconds := func() int64 { return r.n.Params.Int("expiredChangeStreamPreImageRemovalJobSleepSecs") }
	everySeconds(ctx, seconds, func() {
		if err := r.pass(ctx); err != nil && ctx.Err() == nil {
			r.n.warn("Expired pre-images could not be removed", err)
		}
	})
}

// imageLimits determine which pre-images have expired.
type imageLimits struct {
	before storage.Timestamp // older than the oplog
	age    int64             // images up to this time, in milliseconds since the epoch, are too old; 0 for no limit
}

func (l imageLimits) expired(doc []byte) bool {
	ts := storage.Timestamp(value.Lookup(value.Lookup(doc, "_id").Doc(), "ts").TimestampU64())
	return ts < l.before || l.age != 0 && value.Lookup(doc, "operationTime").DateTime() <= l.age
}

// limits returns the current limits. The pre-images of a transaction may be older than its commit by up to the
// lifetime of a transaction.
func (r imageRemover) limits() (l imageLimits, err error) {
	cut, err := r.n.Engine.OplogCut()
	if lives := uint32(r.n.Params.Int("transactionLifetimeLimitSeconds")); err == nil && cut.Seconds() > lives {
		l.before = storage.TimestampOf(cut.Seconds()-lives, cut.Increment())
	}
	options := value.Lookup(r.n.settings.ClusterParameter("changeStreamOptions"), "preAndPostImages").Doc()
	if v := value.Lookup(options, "expireAfterSeconds"); v.T.Numeric() {
		// No image is older than the epoch, and a longer time overflows a Duration.
		now := r.n.now()
		l.age = now.Add(-time.Duration(min(value.SafeInt64(v), now.Unix())) * time.Second).UnixMilli()
	}
	return l, err
}

// removedTogether is the number of images that are deleted in one unit of work.
const removedTogether = 500

// pass deletes what has expired.
func (r imageRemover) pass(ctx context.Context) error {
	l, err := r.limits()
	if err != nil || l.before == 0 && l.age == 0 {
		return err
	}
	for more := true; more && err == nil; {
		more = false
		err = r.n.Docs.WriteWith(ctx, replication.Visible, func(s *storage.Snapshot, u *storage.UnitOfWork) (err error) {
			more, err = removeImages(s, u, l)
			return err
		})
	}
	return err
}

// removeImages deletes some expired images; more reports that there may be others. A collection's images are
// ordered by time, so none after the first unexpired one has expired.
func removeImages(s *storage.Snapshot, u *storage.UnitOfWork, l imageLimits) (more bool, err error) {
	c := s.Catalog().Lookup(storage.PreImagesNS)
	if c == nil {
		return false, nil
	}
	cur := s.Scan(c, storage.ScanOptions{})
	defer cur.Close()
	for n := 0; cur.Next(); {
		if !l.expired(cur.Doc()) {
			uuid, ok := catalog.UUIDFrom(value.Lookup(value.Lookup(cur.Doc(), "_id").Doc(), "nsUUID"))
			if !ok {
				continue // a document that a client wrote
			}
			cur.SeekTo(storage.ImageRecord(storage.ImageID(uuid, storage.MaxTimestamp, 0)))
			continue
		}
		if n++; n > removedTogether {
			return true, nil
		}
		if err := u.Delete(c, cur.RecordID().Clone(), append([]byte(nil), cur.Doc()...), storage.NoInfo); err != nil {
			return false, err
		}
	}
	return false, cur.Err()
}
