package shardnode

import (
	"fmt"

	"github.com/shoaldb/shoal/command"
	"github.com/shoaldb/shoal/query/match"
	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/shardnode/exec"
	"github.com/shoaldb/shoal/shardnode/namespace"
	"github.com/shoaldb/shoal/storage"
	"github.com/shoaldb/shoal/storage/catalog"
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
	ns, mode              string
	coll                  *catalog.Collection
	found                 *storage.Validation // nil if only metadata is checked
	invalid, nonCompliant int64
	repaired              bool
	errors, warnings      []value.Value
	corrupt               []value.Value
	validator             *match.Matcher // the collection's, nil for none
}

// maxFindings bounds the lists of a reply.
const maxFindings = 1000

func (n *Node) runValidate(op *command.Op, dst []byte) ([]byte, error) {
	coll, err := op.Req.Coll()
	if err != nil {
		return dst, err
	}
	v := &validation{ns: op.Req.NS(coll)}
	op.Stats.NS, op.Stats.Type = v.ns, "command"
	if v.mode, err = n.validateMode(op); err != nil {
		return dst, err
	}
	if err := v.check(op, n); err != nil {
		return dst, err
	}
	if v.found != nil && v.mode != repairNone {
		if err := v.repair(op, n); err != nil {
			return dst, err
		}
	}
	return v.reply(dst), nil
}

// The repair modes of a reply.
const (
	repairNone     = "None"
	repairErrors   = "FixErrors"
	repairMultikey = "AdjustMultikey"
)

// validateMode checks the options against each other and returns the repair mode. Only a standalone server repairs: a member of a set that changed its
// own data would differ from the others.
func (n *Node) validateMode(op *command.Op) (string, error) {
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
	case is("background") && n.lone():
		return "", mongoerr.New(mongoerr.CommandNotSupported, "Running the validate command with { background: true } is not supported in standalone mode")
	case is("repair") && !n.lone():
		return "", command.BadOption("Running the validate command with { repair: true } can only be done in standalone mode.")
	case is("repair"):
		return repairErrors, nil
	case is("fixMultikey") && !n.lone():
		return "", command.BadOption("Running the validate command with { fixMultikey: true } can only be done in standalone mode.")
	case is("fixMultikey"):
		return repairMultikey, nil
	}
	return repairNone, nil
}

// check reads every record and every index entry, and compares them.
func (v *validation) check(op *command.Op, n *Node) (err error) {
	s := n.Engine.Snapshot()
	defer s.Release()
	if v.coll, _, err = namespace.FindCollection(s, v.ns); err != nil {
		return err
	}
	if v.coll == nil {
		return mongoerr.Newf(mongoerr.NamespaceNotFound, "Collection '%s' does not exist to validate.", v.ns)
	}
	if op.Bool("metadata") {
		return nil
	}
	if m := n.metas.Of(v.coll); m.Err == nil && m.Validator != nil && m.Level != "off" {
		v.validator = m.Validator.Fork()
	}
	v.found, err = s.Validate(op, v.coll, v.record)
	return err
}

// record checks a document for itself.
func (v *validation) record(rid storage.RecordID, doc []byte) {
	if wire.Validate(doc) != nil {
		v.invalid++
		if len(v.corrupt) < maxFindings {
			v.corrupt = append(v.corrupt, exec.RecordIDValue(rid))
		}
		return
	}
	if v.validator == nil {
		return
	}
	if ok, err := v.validator.Match(doc); err != nil || !ok {
		v.nonCompliant++
	}
}

// repair repairs what was found. The reply's findings are those from before.
func (v *validation) repair(op *command.Op, n *Node) (err error) {
	found := v.found
	if v.mode == repairMultikey {
		found = &storage.Validation{Multikey: found.Multikey, Records: found.Records, Bytes: found.Bytes}
	}
	if found.Valid() && (v.mode == repairMultikey || !found.CountWrong) {
		return nil
	}
	v.repaired, err = n.Engine.Repair(op, v.ns, found)
	return err
}

// describe returns what is wrong with an index, and reports its entries.
func (v *validation) describe(x *storage.IndexValidation) (errors []value.Value) {
	add := func(format string, args ...any) {
		errors = append(errors, value.NewString(fmt.Sprintf(format, args...)))
	}
	if x.Unordered {
		add("index keys are not in order")
	}
	if x.Duplicate {
		add("a unique index has a key twice")
	}
	if n := len(x.Missing); n > 0 {
		add("%d index entries are missing", n)
	}
	if n := len(x.Extra); n > 0 {
		add("%d index entries have no document with their key", n)
	}
	return errors
}

// summarize states as errors and warnings what was found.
func (v *validation) summarize() {
	addError := func(format string, args ...any) {
		v.errors = append(v.errors, value.NewString(fmt.Sprintf(format, args...)))
	}
	missing, extra := 0, 0
	for i := range v.found.Indexes {
		missing, extra = missing+len(v.found.Indexes[i].Missing), extra+len(v.found.Indexes[i].Extra)
	}
	if v.invalid += int64(len(v.found.Corrupt)); v.invalid > 0 {
		addError("Detected one or more invalid documents")
	}
	if missing > 0 {
		addError("Detected %d missing index entries.", missing)
	}
	if extra > 0 {
		addError("Detected %d extra index entries.", extra)
	}
	for _, x := range v.found.Indexes {
		if x.Unordered || x.Duplicate {
			addError("Index %s is inconsistent, see indexDetails.", x.Name)
		}
	}
	for _, name := range v.found.Multikey {
		addError("Index %s is not marked multikey but has documents with several keys.", name)
	}
	for _, rid := range v.found.Corrupt {
		v.corrupt = append(v.corrupt, exec.RecordIDValue(rid))
	}
	if v.nonCompliant > 0 {
		v.warnings = append(v.warnings, value.NewString("Detected one or more documents not compliant with the collection's schema."))
	}
}

// entries returns index entries as missingIndexEntries and extraIndexEntries show them.
func (v *validation) entries(of func(x *storage.IndexValidation) []storage.IndexEntry) value.Value {
	var list []value.Value
	if v.found != nil {
		for i := range v.found.Indexes {
			x := &v.found.Indexes[i]
			for _, e := range of(x) {
				if len(list) < maxFindings {
					list = append(list, value.NewDocument(value.Doc(value.F("indexName", value.NewString(x.Name)),
						value.F("recordId", exec.RecordIDValue(e.RecordID)), value.F("indexKey", value.NewDocument(e.Doc)))))
				}
			}
		}
	}
	return value.NewArray(value.ArrayOf(list...))
}

func (v *validation) reply(dst []byte) []byte {
	c := v.coll
	dst = value.Append(dst, "ns", value.NewString(v.ns))
	dst = value.Append(dst, "uuid", c.UUID.Value())
	var indexes []storage.IndexValidation
	if v.found != nil {
		v.summarize()
		indexes = v.found.Indexes
		dst = value.Append(dst, "nInvalidDocuments", value.NewInt(v.invalid))
		dst = value.Append(dst, "nNonCompliantDocuments", value.NewInt(v.nonCompliant))
		dst = value.Append(dst, "nrecords", value.NewInt(v.found.Records))
	}
	dst = value.Append(dst, "nIndexes", value.NewInt32(int32(len(c.Indexes))))
	if v.found != nil {
		var m int
		dst, m = value.BeginKey(dst, value.Document, "keysPerIndex")
		for _, x := range indexes {
			dst = value.Append(dst, x.Name, value.NewInt(x.Keys))
		}
		dst = value.End(dst, m)
	}
	dst, m := value.BeginKey(dst, value.Document, "indexDetails")
	for i, idx := range c.Indexes {
		var im int
		var wrong []value.Value
		if v.found != nil {
			wrong = v.describe(&indexes[i])
		}
		dst, im = value.BeginKey(dst, value.Document, idx.Name)
		dst = value.Append(dst, "valid", value.NewBool(len(wrong) == 0))
		dst = value.Append(dst, "spec", value.NewDocument(idx.Spec.Raw))
		if len(wrong) > 0 {
			dst = value.Append(dst, "errors", value.NewArray(value.ArrayOf(wrong...)))
		}
		dst = value.End(dst, im)
	}
	dst = value.End(dst, m)
	dst = value.Append(dst, "valid", value.NewBool(len(v.errors) == 0))
	dst = value.Append(dst, "repaired", value.NewBool(v.repaired))
	dst = value.Append(dst, "repairMode", value.NewString(v.mode))
	dst = value.Append(dst, "warnings", value.NewArray(value.ArrayOf(v.warnings...)))
	dst = value.Append(dst, "errors", value.NewArray(value.ArrayOf(v.errors...)))
	dst = value.Append(dst, "extraIndexEntries", v.entries(func(x *storage.IndexValidation) []storage.IndexEntry { return x.Extra }))
	dst = value.Append(dst, "missingIndexEntries", v.entries(func(x *storage.IndexValidation) []storage.IndexEntry { return x.Missing }))
	return value.Append(dst, "corruptRecords", value.NewArray(value.ArrayOf(v.corrupt...)))
}
