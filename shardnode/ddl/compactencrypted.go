package ddl

import (
	"github.com/shoaldb/shoal/command"
	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/shardnode/namespace"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

func (cs *Commands) encryptionSpecs() []command.Spec {
	row := func(name, tokens string, stats []value.Field) command.Spec {
		return command.Spec{
			Name: name, Roles: command.All, Kind: command.DDL, Namespace: true,
			Fields: []command.Field{
				command.Req(tokens, command.TObject), command.Opt("encryptionInformation", command.TObject), command.Opt("anchorPaddingFactor", command.TNumber),
			},
			Run: func(op *command.Op, dst []byte) ([]byte, error) { return cs.compactEncrypted(op, dst, tokens, stats) },
		}
	}
	// Nothing was compacted: every figure is 0.
	none := func(collection string, figures ...string) value.Field {
		var f []value.Field
		for _, name := range figures {
			f = append(f, value.F(name, value.NewInt64(0)))
		}
		return value.F(collection, value.NewDocument(value.Doc(f...)))
	}
	stats := []value.Field{none("esc", "read", "inserted", "updated", "deleted"), none("ecoc", "read", "deleted")}
	return []command.Spec{
		row("compactStructuredEncryptionData", "compactionTokens", stats), row("cleanupStructuredEncryptionData", "cleanupTokens", stats),
	}
}

// compactEncrypted checks the prerequisites of compacting an encrypted collection. There is nothing to compact
// if no encrypted value was written since the last time; the rest would require the client library's
// cryptography.
func (cs *Commands) compactEncrypted(op *command.Op, dst []byte, tokens string, stats []value.Field) ([]byte, error) {
	coll, err := op.Req.Coll()
	if err != nil {
		return dst, err
	}
	ns := op.Req.NS(coll)
	op.Stats.NS, op.Stats.Type = ns, "command"
	s := cs.Engine.Snapshot()
	defer s.Release()
	c, _, err := namespace.FindCollection(s, ns)
	switch {
	case err != nil:
		return dst, err
	case c == nil:
		return dst, mongoerr.Newf(mongoerr.NamespaceNotFound, "Namespace not found: %s", ns)
	}
	fields := value.Lookup(c.Options, "encryptedFields")
	if fields.T != value.Document {
		return dst, mongoerr.New(6346807, "Target namespace is not an encrypted collection")
	}
	given := op.Req.Doc(tokens)
	for _, f := range value.Values(value.Lookup(fields.Doc(), "fields").Doc()) {
		if path := value.Lookup(f.Doc(), "path").Str(); value.Lookup(given, path).IsMissing() {
			return dst, mongoerr.Newf(7294900, "No compaction token found for encrypted path %s", path)
		}
	}
	ecoc := op.Req.NS("enxcol_." + coll + ".ecoc")
	if v := value.Lookup(fields.Doc(), "ecocCollection"); v.T == value.String {
		ecoc = op.Req.NS(v.Str())
	}
	if e := s.Catalog().Lookup(ecoc); e != nil && e.Counters.Records.Load() > 0 {
		return dst, command.NotImplemented("compaction of encrypted collections that hold new values")
	}
	return value.Append(dst, "stats", value.NewDocument(value.Doc(stats...))), nil
}
