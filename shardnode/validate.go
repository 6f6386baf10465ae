package shardnode

import (
	"bytes"
	"fmt"

	"github.com/shoaldb/shoal/command"
	"github.com/shoaldb/shoal/query/match"
	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/shardnode/exec"
	"github.com/shoaldb/shoal/shardnode/namespace"
	"github.com/shoaldb/shoal/storage"
	"github.com/shoaldb/shoal/storage/catalog"
	"github.com/shoaldb/shoal/storage/indexkey"
	"github.com/shoaldb/shoal/wire"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

func validateSpec(n *Node) command.Spec {
	return command.Spec{
		Name: "validate", Roles: command.All, Kind: command.Read, Namespace: true, Lenient: true, Run: n.runValidate,
		Fields: []command.Field{
			command.Opt("full", command.TAny), command.Opt("repair", command.TAny), command.Opt("fixMultikey", command.TAny),
			command.Opt("metadata", command.TAny), command.Opt("background", command.TAny), command.Opt("checkBSONConformance", command.TAny),
		},
	}
}

// validation collects the findings of validate.
type validation struct {
	metadata         bool
	records, invalid int64
	nonCompliant     int64
	keys             map[string]int64
	bad              map[string][]string // errors by index
	errors, warnings []value.Value
	missing, extra   []value.Value
	corrupt          []value.Value
	set              indexkey.KeySet
	validator        *match.Matcher // the collection's, nil for none
}

// maxFindings bounds the lists of a reply.
const maxFindings = 1000

func (n *Node) runValidate(op *command.Op, dst []byte) ([]byte, error) {
	coll, err := op.Req.Coll()
	if err != nil {
		return dst, err
	}
	ns := op.Req.NS(coll)
	op.Stats.NS, op.Stats.Type = ns, "command"
	mode, err := validateMode(op)
	if err != nil {
		return dst, err
	}
	s := n.Engine.Snapshot()
	defer s.Release()
	c, _, err := namespace.FindCollection(s, ns)
	if err != nil {
		return dst, err
	}
	if c == nil {
		return dst, mongoerr.Newf(mongoerr.NamespaceNotFound, "Collection '%s' does not exist to validate.", ns)
	}
	v := &validation{metadata: op.Bool("metadata"), keys: map[string]int64{}, bad: map[string][]string{}}
	if m := n.metas.Of(c); m.Err == nil && m.Validator != nil && m.Level != "off" {
		v.validator = m.Validator.Fork()
	}
	if !v.metadata {
		if err := v.run(op, s, c); err != nil {
			return dst, err
		}
	}
	return v.reply(dst, ns, c, mode), nil
}

// validateMode checks the options against each other and returns the name of the repair mode.
func validateMode(op *command.Op) (string, error) {
	is := op.Bool
	refuse := func(what string) error {
		return command.BadOption("Running the validate command with %s is not supported.", what)
	}
	switch {
	case is("metadata") && (is("full") || is("repair") || is("checkBSONConformance") || is("background") || is("fixMultikey")):
		return "", refuse("{ metadata: true } and any other options")
	case is("background") && (is("full") || is("repair")):
		return "", refuse("both { background: true } and { full: true } or { repair: true }")
	case is("checkBSONConformance") && is("repair"):
		return "", refuse("both { checkBSONConformance: true } and { repair: true }")
	case is("repair"):
		return "FixErrors", nil
	case is("fixMultikey"):
		return "AdjustMultikey", nil
	}
	return "None", nil
}

// run reads every record and every index entry, and compares them.
func (v *validation) run(op *command.Op, s *storage.Snapshot, c *catalog.Collection) error {
	expected := map[string]int64{}
	cur := s.Scan(c, storage.ScanOptions{})
	defer cur.Close()
	for cur.Next() {
		if err := op.Check(); err != nil {
			return err
		}
		v.records++
		doc := cur.Doc()
		if err := wire.Validate(doc); err != nil {
			v.invalid++
			v.addError("Detected one or more invalid documents")
			v.corrupt = append(v.corrupt, exec.RecordIDValue(cur.RecordID()))
			continue
		}
		v.countKeys(c, doc, expected)
		if v.validator == nil {
			continue
		}
		if ok, err := v.validator.Match(doc); err != nil || !ok {
			v.nonCompliant++
		}
	}
	if v.nonCompliant > 0 {
		v.warnings = append(v.warnings, value.NewString("Detected one or more documents not compliant with the collection's schema."))
	}
	if err := cur.Err(); err != nil {
		return err
	}
	for _, idx := range c.Indexes {
		if !idx.Ready {
			continue
		}
		if err := v.checkIndex(op, s, c, idx, expected[idx.Name]); err != nil {
			return err
		}
	}
	return nil
}

func (v *validation) addError(text string) {
	for _, e := range v.errors {
		if e.Str() == text {
			return
		}
	}
	v.errors = append(v.errors, value.NewString(text))
}

// countKeys counts the index keys that a document has to have.
func (v *validation) countKeys(c *catalog.Collection, doc []byte, expected map[string]int64) {
	for _, idx := range c.Indexes {
		if !idx.Ready {
			continue
		}
		if err := idx.Keys.Keys(doc, &v.set); err != nil {
			v.bad[idx.Name] = append(v.bad[idx.Name], err.Error())
			continue
		}
		expected[idx.Name] += int64(v.set.Len())
	}
}

// checkIndex walks an index: its keys must be in order, and there must be as many as the documents have.
func (v *validation) checkIndex(op *command.Op, s *storage.Snapshot, c *catalog.Collection, idx *catalog.Index, expected int64) error {
	cur := s.IndexScan(c, idx, false)
	defer cur.Close()
	var last []byte
	var n int64
	for cur.Next() {
		if err := op.Check(); err != nil {
			return err
		}
		n++
		if last != nil && bytes.Compare(last, cur.Key()) > 0 {
			v.bad[idx.Name] = append(v.bad[idx.Name], "index keys are not in order")
		}
		last = append(last[:0], cur.Key()...)
	}
	if err := cur.Err(); err != nil {
		return err
	}
	v.keys[idx.Name] = n
	entry := value.NewDocument(value.Doc(value.F("indexName", value.NewString(idx.Name)), value.F("expectedKeys", value.NewInt64(expected)),
		value.F("keys", value.NewInt64(n))))
	switch {
	case n < expected && len(v.missing) < maxFindings:
		v.missing = append(v.missing, entry)
		v.addError(fmt.Sprintf("Detected %d missing index entries.", expected-n))
	case n > expected && len(v.extra) < maxFindings:
		v.extra = append(v.extra, entry)
		v.addError(fmt.Sprintf("Detected %d extra index entries.", n-expected))
	default:
		return nil
	}
	v.bad[idx.Name] = append(v.bad[idx.Name], fmt.Sprintf("index has %d entries, the documents have %d keys", n, expected))
	return nil
}

func (v *validation) reply(dst []byte, ns string, c *catalog.Collection, mode string) []byte {
	dst = value.Append(dst, "ns", value.NewString(ns))
	dst = value.Append(dst, "uuid", c.UUID.Value())
	if !v.metadata {
		dst = value.Append(dst, "nInvalidDocuments", value.NewInt(v.invalid))
		dst = value.Append(dst, "nNonCompliantDocuments", value.NewInt(v.nonCompliant))
		dst = value.Append(dst, "nrecords", value.NewInt(v.records))
	}
	dst = value.Append(dst, "nIndexes", value.NewInt32(int32(len(c.Indexes))))
	if !v.metadata {
		var m int
		dst, m = value.BeginKey(dst, value.Document, "keysPerIndex")
		for _, idx := range c.Indexes {
			dst = value.Append(dst, idx.Name, value.NewInt(v.keys[idx.Name]))
		}
		dst = value.End(dst, m)
	}
	dst, m := value.BeginKey(dst, value.Document, "indexDetails")
	for _, idx := range c.Indexes {
		var im int
		dst, im = value.BeginKey(dst, value.Document, idx.Name)
		dst = value.Append(dst, "valid", value.NewBool(len(v.bad[idx.Name]) == 0))
		dst = value.Append(dst, "spec", value.NewDocument(idx.Spec.Raw))
		if errs := v.bad[idx.Name]; len(errs) > 0 {
			var list []value.Value
			for _, e := range errs {
				list = append(list, value.NewString(e))
			}
			dst = value.Append(dst, "errors", value.NewArray(value.ArrayOf(list...)))
		}
		dst = value.End(dst, im)
	}
	dst = value.End(dst, m)
	dst = value.Append(dst, "valid", value.NewBool(len(v.errors) == 0))
	dst = value.Append(dst, "repaired", value.NewBool(false))
	dst = value.Append(dst, "repairMode", value.NewString(mode))
	for _, l := range []struct {
		name string
		vs   []value.Value
	}{{"warnings", v.warnings}, {"errors", v.errors}, {"extraIndexEntries", v.extra}, {"missingIndexEntries", v.missing}, {"corruptRecords", v.corrupt}} {
		dst = value.Append(dst, l.name, value.NewArray(value.ArrayOf(l.vs...)))
	}
	return dst
}
