package command

import (
	"cmp"
	"math"
	"strconv"
	"strings"

	"github.com/shoaldb/shoal/cluster"
	"github.com/shoaldb/shoal/cluster/msg"
	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/wire"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// Request is a parsed command: its own arguments, according to the Spec's field table, and the generic ones.
// Everything borrows from the message.
type Request struct {
	Msg  *wire.Message
	Spec *Spec
	Name string      // as the client spelt it
	Cmd  value.Value // the value of the first element
	DB   string
	Body []byte

	args []arg
	room struct { // memory for what most requests have, to avoid allocations
		args [12]arg
		lsid [80]byte
	}

	SessionArgs
	SenderArgs
	ReadConcern    *ReadConcern  // nil if none was sent
	WriteConcern   *WriteConcern // nil if none was sent: see AskedConcern
	concerns       concerns
	MaxTimeMS      int64
	Comment        value.Value
	Help           bool                    // the request asks only for the command's help
	ReadPreference *cluster.ReadPreference // nil: the primary
	API            APIArgs
	Sampled        bool // a sampleId in it is this service's own
	rawData        rawDataArg
}

// SessionArgs associate a request with a session, and with a transaction or retryable write in it.
type SessionArgs struct {
	LSID         []byte // the lsid document, nil without a session
	TxnNumber    int64
	HasTxnNumber bool
	StartTxn     bool
	Autocommit   value.Value
	StmtID       value.Value
	StmtIDs      []int32
}

// SenderArgs has the sender's knowledge of the cluster: its vector clock, and the versions by which a router has chosen this
// shard.
type SenderArgs struct {
	ClusterTime  []byte
	ConfigTime   uint64
	TopologyTime uint64
	ShardVersion []byte
	DatabaseVer  []byte
}

// APIArgs are the stable API's three arguments.
type APIArgs struct {
	Version           string
	Given             bool
	Strict            bool
	DeprecationErrors bool
}

type arg struct {
	field *Field
	v     value.Value
}

// StatementID returns the id of the command's i-th statement: i itself if the client does not number its
// statements.
func (r *Request) StatementID(i int) int32 {
	if i < len(r.StmtIDs) {
		return r.StmtIDs[i]
	} else if n, ok := r.StmtID.AsInt64(); ok {
		return int32(n) + int32(i)
	}
	return int32(i)
}

// CheckBatch checks that a write command does not have too many statements, nor none, and an id for each of them if it has ids.
func (r *Request) CheckBatch(n int) error {
	if n < 1 || n > MaxWriteBatch {
		return mongoerr.Newf(mongoerr.InvalidLength, "Write batch sizes must be between 1 and %d. Got %d operations.", MaxWriteBatch, n)
	}
	if r.StmtIDs != nil && len(r.StmtIDs) != n {
		return mongoerr.Newf(mongoerr.InvalidLength, "Number of statement ids must match the number of batch entries. Got %d statement ids but %d operations.", len(r.StmtIDs), n)
	}
	return nil
}

// Arg returns the value of a field of the command's own table, Missing if the client did not send it.
func (r *Request) Arg(name string) value.Value {
	if Misread != nil {
		r.checkRead(name)
	}
	return r.Shared(name)
}

func (r *Request) checkRead(name string) {
	if r.Spec.made.index != nil && !r.Spec.Has(name) {
		Misread(r.Spec.Name, name)
	}
}

// Shared is Arg for code that several commands run, some of which have no such field.
func (r *Request) Shared(name string) value.Value {
	for i := range r.args {
		if r.args[i].field.Name == name {
			return r.args[i].v
		}
	}
	return value.Value{}
}

// Misread is called for each read of an argument that is not a field of the command. Such a read finds nothing whatever
// the client sends, and no reply shows it. Tests set Misread before anything runs: see commandtest.
var Misread func(command, field string)

// Doc is Arg for an object or array: its raw bytes, nil if it is missing.
func (r *Request) Doc(name string) []byte { return r.Arg(name).Doc() }

// Bool is Arg for a flag; a number is true unless it is zero.
func (r *Request) Bool(name string) bool { return r.Arg(name).Truthy() }

// BoolOr is Bool with a default for a missing field.
func (r *Request) BoolOr(name string, def bool) bool {
	if v := r.Arg(name); !v.IsMissing() {
		return v.Truthy()
	}
	return def
}

// Str is Arg for text.
func (r *Request) Str(name string) string {
	if v := r.Arg(name); v.T == value.String {
		return v.Str()
	}
	return ""
}

// UUID is Arg for a UUID; nil if it was not sent.
func (r *Request) UUID(name string) (*[16]byte, error) {
	v := r.Arg(name)
	if v.IsNullish() { // the common case, in which nothing is allocated
		return nil, nil
	}
	return uuidOf(r.Spec.Name+"."+name, v)
}

// uuidOf returns the UUID that the field at path has; nil if it has none.
func uuidOf(path string, v value.Value) (*[16]byte, error) {
	if v.IsNullish() {
		return nil, nil
	}
	id := new([16]byte)
	switch {
	case v.T != value.Binary || v.Subtype() != 4:
		return nil, mongoerr.Newf(mongoerr.TypeMismatch, "BSON field '%s' is the wrong type '%s', expected type 'UUID'", path, v.T.Name())
	case copy(id[:], v.Bytes()) != len(id) || len(v.Bytes()) != len(id):
		return nil, mongoerr.New(mongoerr.InvalidUUID, "uuid must be a 16-byte binary field with UUID (4) subtype")
	}
	return id, nil
}

// Int is Arg for a number, converted to an integer; def if it is missing.
func (r *Request) Int(name string, def int64) int64 {
	v := r.Arg(name)
	if v.IsMissing() {
		return def
	}
	return value.SafeInt64(v)
}

// Coll returns the command's value as a collection name, with its errors.
func (r *Request) Coll() (string, error) {
	if r.Cmd.T != value.String && r.Spec.Namespace {
		return "", mongoerr.Newf(mongoerr.InvalidNamespace, "Collection name has invalid type %s", r.Cmd.T.Name())
	}
	if r.Cmd.T != value.String {
		return "", mongoerr.Newf(mongoerr.BadValue, "Collection name has invalid type %s", r.Cmd.T.Name())
	}
	name := r.Cmd.Str()
	return name, CheckCollName(r.DB, name)
}

// NS joins database and collection.
func (r *Request) NS(coll string) string { return r.DB + "." + coll }

// CheckCollName checks a collection's name, as every command does.
func CheckCollName(db, coll string) error {
	switch {
	case coll == "":
		return mongoerr.Newf(mongoerr.InvalidNamespace, "Invalid namespace specified: %s", db)
	case strings.IndexByte(coll, 0) >= 0:
		return mongoerr.New(mongoerr.InvalidNamespace, "namespaces cannot have embedded null characters")
	case coll[0] == '.':
		return mongoerr.Newf(mongoerr.InvalidNamespace, "Collection names cannot start with '.': %s", coll)
	}
	return nil
}

// CheckDBName checks a database's name.
func CheckDBName(db string) error {
	if db == "" || len(db) >= 64 || strings.ContainsAny(db, "/\\. \"$\x00") {
		return mongoerr.Newf(mongoerr.InvalidNamespace, "Invalid database name: '%s'", db)
	}
	return nil
}

// Docs is a list of documents, from an array in the body or from a document sequence after it.
type Docs struct {
	raw   []byte
	array bool
	there bool
}

// DocList finds a list of documents by name.
func (r *Request) DocList(name string) Docs {
	for i := range r.Msg.Seqs {
		if r.Msg.Seqs[i].ID == name {
			return Docs{raw: r.Msg.Seqs[i].Docs, there: true}
		}
	}
	if v := r.Arg(name); v.T == value.Array {
		return Docs{raw: v.Doc(), array: true, there: true}
	}
	return Docs{}
}

// There reports whether the list was sent.
func (d Docs) There() bool { return d.there }

// Each calls f with every document until it returns an error; an element of an array that is not a document is an
// error with its index.
func (d Docs) Each(path string, f func(i int, doc []byte) error) error {
	if d.array {
		i := 0
		for it := value.Walk(d.raw); ; i++ {
			_, v, ok := it.Next()
			if !ok {
				return nil
			}
			if v.T != value.Document {
				return wrongType(path+"."+strconv.Itoa(i), v.T, TObject)
			}
			if err := f(i, v.Doc()); err != nil {
				return err
			}
		}
	}
	rest := d.raw
	for i := 0; len(rest) >= 5; i++ {
		v, ok := value.FromElement(value.Document, rest)
		if !ok {
			return mongoerr.New(mongoerr.InvalidBSON, "document sequence holds a broken document")
		}
		if err := f(i, v.Doc()); err != nil {
			return err
		}
		rest = rest[len(v.Doc()):]
	}
	return nil
}

// Count returns the number of documents of the list.
func (d Docs) Count() int {
	if d.array {
		return value.Count(d.raw)
	}
	n := 0
	for rest := d.raw; len(rest) >= 5; n++ {
		v, ok := value.FromElement(value.Document, rest)
		if !ok {
			break
		}
		rest = rest[len(v.Doc()):]
	}
	return n
}

func wrongType(path string, got value.Type, want Types) error {
	return wrongTypeBut(path, got, want.String())
}

func wrongTypeBut(path string, got value.Type, want string) error {
	return mongoerr.Newf(mongoerr.TypeMismatch, "BSON field '%s' is the wrong type '%s', expected %s", path, got.Name(), want)
}

// UnknownField returns the error for a field that a command (or a sub-document) does not know.
func UnknownField(path string) error {
	return mongoerr.UnknownField(path)
}

// MissingField returns the error for a required field that is missing.
func MissingField(path string) error {
	return mongoerr.MissingField(path)
}

// WrongType returns the error for a field whose type differs from its table's.
func WrongType(path string, got value.Type, want Types) error { return wrongType(path, got, want) }

// refuse returns the error for an argument of a type that the field does not take.
func (s *Spec) refuse(f *Field, got value.Type) error {
	if f.Refusal != "" {
		return mongoerr.New(mongoerr.TypeMismatch, f.Refusal)
	}
	return wrongTypeBut(s.path(f.Name), got, cmp.Or(f.Expected, f.Types.String()))
}

// parse reads the body: it checks the command's own fields against its table, and stores the generic ones.
func (r *Request) parse(strict bool) error {
	it := value.Walk(r.Body)
	key, v, ok := it.Next()
	if !ok {
		return mongoerr.New(mongoerr.CommandNotFound, "no such command: ''")
	}
	spec := r.Spec
	if r.Name, r.Cmd = spec.Name, v; string(key) != spec.Name { // an alias
		r.Name = string(key)
	}
	r.args = r.room.args[:0]
	if spec.Namespace && v.T != value.String && !(spec.ArgTypes != 0 && spec.ArgTypes.accepts(v.T)) {
		return mongoerr.Newf(mongoerr.InvalidNamespace, "Collection name has invalid type %s", v.T.Name())
	}
	if !spec.Namespace && spec.ArgTypes != 0 && !spec.ArgTypes.accepts(v.T) {
		if v.IsNullish() && spec.ArgTypes&(spec.ArgTypes-1) == 0 {
			return MissingField(spec.path(spec.Name))
		}
		return wrongType(spec.path(spec.Name), v.T, spec.ArgTypes)
	}
	var seen uint64
	for {
		key, v, ok = it.Next()
		if !ok {
			break
		}
		i, known := spec.made.index[string(key)]
		if known {
			if seen&(1<<i) != 0 {
				return mongoerr.DuplicateField(spec.path(string(key)))
			}
			seen |= 1 << i
			taken, err := r.setArg(&spec.Fields[i], v)
			if err != nil {
				return err
			}
			if !taken && spec.Fields[i].Required {
				return MissingField(spec.path(spec.Fields[i].Name))
			}
			continue
		}
		known, err := r.generic(key, v)
		if err != nil {
			return err
		}
		if !known && strict && !spec.Lenient {
			return UnknownField(spec.path(string(key)))
		}
	}
	for i := range r.Msg.Seqs {
		if j, ok := spec.made.index[r.Msg.Seqs[i].ID]; ok {
			seen |= 1 << j
		} else if strict && !spec.Lenient {
			return UnknownField(spec.path(r.Msg.Seqs[i].ID))
		}
	}
	for i := range spec.Fields {
		if spec.Fields[i].Required && seen&(1<<i) == 0 {
			return MissingField(spec.path(spec.Fields[i].Name))
		}
	}
	return nil
}

// streamed has the lists that commands read directly from document sequences.
var streamed = map[string]bool{"documents": true, "updates": true, "deletes": true, "ops": true, "nsInfo": true}

// foldSequences replaces every other document sequence by the equivalent array in the body, where handlers and authorization
// rules look for arguments. A list in both places is an error, since different readers would use different ones.
func (r *Request) foldSequences() error {
	msg := *r.Msg
	msg.Seqs = nil
	for _, s := range r.Msg.Seqs {
		if !value.Lookup(r.Body, s.ID).IsMissing() {
			return mongoerr.DuplicateField(r.Spec.path(s.ID))
		}
		if streamed[s.ID] {
			msg.Seqs = append(msg.Seqs, s)
			continue
		}
		list, m := value.BeginKey(nil, value.Array, s.ID)
		i := 0
		err := Docs{raw: s.Docs}.Each(s.ID, func(_ int, doc []byte) error {
			list = value.AppendIndex(list, i, value.NewDocument(doc))
			i++
			return nil
		})
		if err != nil {
			return err
		}
		body := append(append(make([]byte, 0, len(msg.Body)+len(list)+1), msg.Body[:len(msg.Body)-1]...), value.End(list, m)...)
		msg.Body = value.End(body, 0)
	}
	if len(msg.Seqs) < len(r.Msg.Seqs) {
		r.Msg, r.Body = &msg, msg.Body
	}
	return nil
}

// setArg checks and stores an argument; taken is false for a null, which counts as not sent.
func (r *Request) setArg(f *Field, v value.Value) (taken bool, err error) {
	if (v.T == value.Null || v.T == value.Undefined) && f.Types != TAny && f.Types&TOther == 0 && !f.NotNull {
		return false, nil
	}
	if !f.Types.accepts(v.T) {
		return false, r.Spec.refuse(f, v.T)
	}
	r.args = append(r.args, arg{f, v})
	return true, nil
}

// generic stores an argument that any command may have; known is false for all others.
func (r *Request) generic(key []byte, v value.Value) (known bool, err error) {
	typed := func(t Types) error {
		if v.T == value.Null || t.accepts(v.T) {
			return nil
		}
		return wrongType(r.Spec.path(string(key)), v.T, t)
	}
	switch string(key) {
	case "$db":
		if v.T != value.String {
			return true, wrongType(r.Spec.path("$db"), v.T, TString)
		}
		r.DB = v.Str()
	case "lsid":
		r.LSID, err = v.Doc(), typed(TObject)
	case "txnNumber":
		err = r.setTxnNumber(v)
	case "autocommit":
		if err = typed(TBool); v.T == value.Boolean {
			r.Autocommit = v
		}
	case "startTransaction":
		if r.StartTxn, err = v.Truthy(), typed(TBool); v.T == value.Boolean && !r.StartTxn {
			err = mongoerr.New(mongoerr.InvalidOptions, "Specifying startTransaction=false is not allowed.")
		}
	case "readConcern":
		if err = typed(TObject); v.T == value.Document {
			r.concerns.read = ReadConcern{Doc: v.Doc()}
			r.ReadConcern = &r.concerns.read
		}
	case "writeConcern":
		if err = typed(TObject); v.T == value.Document {
			r.concerns.write = WriteConcern{Doc: v.Doc()}
			r.WriteConcern = &r.concerns.write
		}
	case "maxTimeMS", "maxTimeMSOpOnly":
		return true, r.setMaxTime(string(key), v)
	case "comment":
		r.Comment = v
	case "help", "rawData":
		err = r.setFlag(string(key), v)
	case "$clusterTime":
		r.ClusterTime, err = v.Doc(), typed(TObject)
	case "shardVersion":
		r.ShardVersion, err = v.Doc(), typed(TObject)
	case "databaseVersion":
		r.DatabaseVer, err = v.Doc(), typed(TObject)
	case "$readPreference":
		if err = typed(TObject); err == nil && v.T == value.Document {
			r.ReadPreference, err = cluster.ParseReadPreference(v.Doc())
		}
	case "$queryOptions":
		// The form used by drivers that spoke OP_QUERY.
		if p := value.Lookup(v.Doc(), "$readPreference"); v.T == value.Document && p.T == value.Document {
			r.ReadPreference, err = cluster.ParseReadPreference(p.Doc())
		}
	case "apiVersion":
		if err = typed(TString); v.T == value.String {
			r.API.Version, r.API.Given = v.Str(), true
		}
	case "apiStrict":
		r.API.Strict, err = v.Truthy(), typed(TBool)
	case "apiDeprecationErrors":
		r.API.DeprecationErrors, err = v.Truthy(), typed(TBool)
	case "stmtId":
		r.StmtID, err = v, typed(TInt)
	case "stmtIds":
		if err = typed(TArray); err == nil && v.T == value.Array {
			r.StmtIDs, err = statementIDs(r.Spec.path("stmtIds"), v.Doc())
		}
	case "$configTime", "$topologyTime":
		r.keepTime(string(key), v)
	case "$client", "$audit", "clientOperationKey",
		msg.BypassesWriteBlock, "coordinator", "txnRetryCounter", "startOrContinueTransaction",
		"$oplogQueryData", "$replData", "allowImplicitCollectionCreation", "versionContext":
	default:
		return false, nil
	}
	return true, err
}

// statementIDs decodes stmtIds once: a command has up to 100,000 of them, and each statement asks for its own.
func statementIDs(path string, list []byte) ([]int32, error) {
	ids := []int32{}
	for it := value.Walk(list); ; {
		_, v, ok := it.Next()
		if !ok {
			return ids, nil
		}
		n, ok := v.AsInt64()
		if !ok {
			return nil, wrongType(path+"."+strconv.Itoa(len(ids)), v.T, TInt)
		}
		ids = append(ids, int32(n))
	}
}

func (r *Request) setFlag(key string, v value.Value) error {
	switch {
	case key == "help":
		r.Help = v.Truthy()
	case v.T == value.Boolean:
		r.rawData.sent = r.rawData.sent || v.Truthy()
	case v.T != value.Null:
		return wrongType(r.Spec.path(key), v.T, TBool)
	}
	return nil
}

// keepTime stores the sender's config time or topology time.
func (r *Request) keepTime(key string, v value.Value) {
	switch {
	case v.T != value.Timestamp:
	case key == "$configTime":
		r.ConfigTime = v.TimestampU64()
	default:
		r.TopologyTime = v.TimestampU64()
	}
}

func (r *Request) setTxnNumber(v value.Value) error {
	switch v.T {
	case value.Null, value.Undefined:
		return nil
	case value.Int64:
		r.TxnNumber, r.HasTxnNumber = v.Int64(), true
		return nil
	}
	return mongoerr.Newf(mongoerr.TypeMismatch, "BSON field '%s.txnNumber' is the wrong type '%s', expected type 'long'", r.Spec.Name, v.T.Name())
}

func (r *Request) setMaxTime(name string, v value.Value) error {
	if v.IsNullish() {
		return nil
	}
	if v.T == value.Null {
		return nil
	}
	if !v.T.Numeric() {
		return mongoerr.Newf(mongoerr.TypeMismatch, "BSON field '%s' is the wrong type '%s', expected %s", name, v.T.Name(), TNumber)
	}
	ms, ok := v.AsInt64()
	if !ok {
		if f := v.AsFloat64(); f == math.Trunc(f) && !v.IsNaN() && !v.IsInfinite() && math.Abs(f) < 1<<63 {
			return mongoerr.Newf(mongoerr.BadValue, "%s value for %s is out of range [0, 2147483647]", value.Show(v), name)
		}
		return mongoerr.Newf(mongoerr.FailedToParse, "Expected an integer: %s: %s", name, value.Show(v))
	}
	if ms < 0 || ms > 1<<31-1 {
		return mongoerr.Newf(mongoerr.BadValue, "%d value for %s is out of range [0, 2147483647]", ms, name)
	}
	r.MaxTimeMS = ms
	return nil
}
