package analyzer

import (
	"context"

	"github.com/shoaldb/shoal/cluster"
	"github.com/shoaldb/shoal/cluster/msg"
	"github.com/shoaldb/shoal/command"
	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// analysis is one run of analyzeShardKey.
type analysis struct {
	*Analyzer
	op   *command.Op
	coll collection
	key  *cluster.ShardKeyPattern

	rate float64 // sampleRate, 0 if it was not given
	size int64   // sampleSize, 0 if it was not given
}

func (a *Analyzer) runAnalyze(op *command.Op, dst []byte) ([]byte, error) {
	x := &analysis{Analyzer: a, op: op}
	character, distribution, err := x.parse()
	if err != nil {
		return dst, err
	}
	if x.coll, err = a.inspect(op); err != nil {
		return dst, err
	}
	stats, err := cluster.Run(op, a.d.Data(), x.command(&msg.CollStats{DB: x.coll.db, Coll: x.coll.name}))
	if err != nil {
		return dst, err
	}
	if value.SafeInt64(value.Lookup(stats, "count")) == 0 {
		return dst, mongoerr.Newf(mongoerr.IllegalOperation, "Cannot analyze a shard key for an empty collection: %s", x.coll.ns)
	}
	if character {
		index, err := x.supportingIndex()
		if err != nil {
			return dst, err
		}
		if index == nil && !distribution {
			return dst, mongoerr.New(mongoerr.IllegalOperation, "Cannot analyze the characteristics of a shard key that does not have a supporting index")
		}
		if index != nil {
			doc, err := x.characteristics(index, stats)
			if err != nil {
				return dst, err
			}
			dst = value.Append(dst, "keyCharacteristics", value.NewDocument(doc))
		}
	}
	if distribution {
		return x.distribution(dst)
	}
	return dst, nil
}

// parse reads the arguments.
func (x *analysis) parse() (character, distribution bool, err error) {
	op := x.op
	character, distribution = op.Req.BoolOr("keyCharacteristics", true), op.Req.BoolOr("readWriteDistribution", true)
	rate, size := op.Arg("sampleRate"), op.Arg("sampleSize")
	switch {
	case !character && !distribution:
		return false, false, mongoerr.New(mongoerr.InvalidOptions, "At least one of 'keyCharacteristics' and 'readWriteDistribution' must be true")
	case !rate.IsNullish() && !size.IsNullish():
		return false, false, mongoerr.New(mongoerr.InvalidOptions, "Cannot specify both 'sampleRate' and 'sampleSize'")
	case !character && !(rate.IsNullish() && size.IsNullish()):
		return false, false, mongoerr.New(mongoerr.InvalidOptions, "Cannot specify 'sampleRate' or 'sampleSize' when 'keyCharacteristics' is false")
	}
	if !rate.IsNullish() {
		if x.rate = rate.AsFloat64(); !(x.rate > 0 && x.rate <= 1) {
			return false, false, mongoerr.Newf(mongoerr.BadValue, "BSON field 'analyzeShardKey.sampleRate' value must be > 0 and <= 1, actual value '%s'", value.Show(rate))
		}
	}
	if !size.IsNullish() {
		if x.size = value.SafeInt64(size); x.size <= 0 {
			return false, false, mongoerr.Newf(mongoerr.BadValue, "BSON field 'analyzeShardKey.sampleSize' value must be > 0, actual value '%s'", value.Show(size))
		}
	}
	x.key, err = cluster.ParseShardKey(op.Req.Doc("key"))
	return character, distribution, err
}

// command returns a message as a command with the client's read preference.
func (x *analysis) command(m msg.Message) []byte {
	if p := value.Lookup(x.op.Req.Body, "$readPreference"); p.T == value.Document {
		return msg.Doc(m, value.F("$readPreference", p))
	}
	return msg.Doc(m)
}

// aggregate returns an aggregate of the collection, which may use the disk.
func (x *analysis) aggregate(collation []byte, stages ...value.Value) []byte {
	return x.command(&msg.Aggregate{
		DB: x.coll.db, On: value.NewString(x.coll.name), Pipeline: value.ArrayOf(stages...), Cursor: new(msg.Cursor), DiskUse: true, Collation: collation,
	})
}

// each runs a command that opens a cursor, and calls f with each document.
func each(ctx context.Context, p cluster.Peer, db string, cmd []byte, f func(doc []byte)) error {
	reply, err := cluster.Run(ctx, p, cmd)
	for batch := "firstBatch"; ; batch = "nextBatch" {
		if err != nil {
			return err
		}
		cur := value.Lookup(reply, "cursor").Doc()
		for it := value.Walk(value.Lookup(cur, batch).Doc()); ; {
			_, d, ok := it.Next()
			if !ok {
				break
			}
			f(d.Doc())
		}
		id, _ := value.Lookup(cur, "id").AsInt64()
		if id == 0 {
			return nil
		}
		_, coll := cluster.SplitNS(value.Lookup(cur, "ns").Str())
		reply, err = cluster.Run(ctx, p, msg.Doc(&msg.GetMore{DB: db, Coll: coll, Cursor: id}))
	}
}
