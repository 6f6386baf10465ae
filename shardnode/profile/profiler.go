package profile

import (
	"context"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/shoaldb/shoal/command"
	"github.com/shoaldb/shoal/query/match"
	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/replication"
	"github.com/shoaldb/shoal/storage"
	"github.com/shoaldb/shoal/storage/catalog"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// Config has the profiler's dependencies on its node.
type Config struct {
	Engine *storage.Engine
	Set    replication.Set
	Now    func() time.Time
	// SlowLog returns the function that writes the line of a slow operation; nil for nowhere.
	SlowLog func() func(conn int64, write bool, attrs []byte)
	// LogAll reports whether all operations get a line, however fast: the log's verbosity is 1 or more. nil if none do.
	LogAll func(write bool) bool
}

func New(c Config) *Profiler {
	p := &Profiler{Config: c}
	p.dbs.Store(&map[string]dbProfile{})
	p.slowMS.Store(100)
	one := 1.0
	p.sample.Store(&one)
	return p
}

// Configure applies the options --slowms, --slowOpSampleRate and --profile.
func (pr *Profiler) Configure(slowMS int64, rate float64, level int) {
	pr.slowMS.Store(slowMS)
	pr.sample.Store(&rate)
	pr.level.Store(int32(level))
}

// Notes reports whether an execution of this duration on a database may have to be reported.
func (pr *Profiler) Notes(db string, took time.Duration) bool {
	set := pr.of(db)
	return took.Milliseconds() >= pr.slowMS.Load() || set.level == 2 || set.filter != nil || pr.logsAll(false)
}

func (pr *Profiler) logsAll(write bool) bool { return pr.LogAll != nil && pr.LogAll(write) }

// NoteCommand is Note for a command as a whole.
func (pr *Profiler) NoteCommand(op *command.Op, err error) {
	pr.Note(&Execution{Op: op, Name: op.Req.Spec.Name, NS: opNS(op), Stats: &op.Stats, Err: err, Took: op.Worked()})
}

// Profiler holds the settings of the command profile: level and filter of each database, slowms and sampleRate for all.
type Profiler struct {
	Config

	mu     sync.Mutex // serialises the command
	dbs    atomic.Pointer[map[string]dbProfile]
	slowMS atomic.Int64
	sample atomic.Pointer[float64]
	level  atomic.Int32 // for databases without a setting of their own
}

// of returns the setting of a database.
func (pr *Profiler) of(db string) dbProfile {
	if s, ok := (*pr.dbs.Load())[db]; ok {
		return s
	}
	return dbProfile{level: int(pr.level.Load())}
}

// Observes reports whether an operation on a database may get an entry in its profile.
func (pr *Profiler) Observes(db string) bool {
	s := pr.of(db)
	return s.level > 0 || s.filter != nil
}

// keeps reports whether an operation that has taken this long so far, and has not ended, will probably get an
// entry.
func (pr *Profiler) keeps(db string, took time.Duration) bool {
	s := pr.of(db)
	return s.level == 2 || s.filter != nil || s.level == 1 && took.Milliseconds() >= pr.slowMS.Load()
}

// frozenExec are execution statistics that no longer change.
type frozenExec []byte

// AppendExecStats implements command.ExecStats.
func (f frozenExec) AppendExecStats(dst []byte) []byte { return append(dst, f...) }

// Freeze copies the statistics of an operation's plan, before another operation may continue its cursor.
func (pr *Profiler) Freeze(op *command.Op) {
	switch {
	case op.Stats.Exec == nil:
	case pr.keeps(op.Req.DB, op.Worked()):
		op.Stats.Exec = frozenExec(op.Stats.Exec.AppendExecStats(nil))
	default:
		op.Stats.Exec = nil
	}
}

// dbProfile is the setting of one database: 0 off, 1 slow operations, 2 all.
type dbProfile struct {
	level  int
	filter *match.Matcher
}

// profileSize is the size of a system.profile that the profiler creates.
const profileSize = 1 << 20

const profileNote = "When a filter expression is set, slowms and sampleRate are not used for profiling and slow-query log lines."

func (pr *Profiler) Specs() []command.Spec {
	return []command.Spec{{
		Name: "profile", Roles: command.All, ArgTypes: command.TNumber, Run: pr.runProfile,
		Fields: []command.Field{command.Opt("slowms", command.TNumber), command.Opt("sampleRate", command.TNumber), command.Opt("filter", command.TAny)},
	}}
}

func (pr *Profiler) runProfile(op *command.Op, dst []byte) ([]byte, error) {
	p := pr
	p.mu.Lock()
	defer p.mu.Unlock()
	was := p.of(op.DB())
	slow, sample := p.slowMS.Load(), *p.sample.Load()
	next, set, err := profileFilter(was, op.Arg("filter"))
	if err != nil {
		return dst, err
	}
	rate := op.Arg("sampleRate")
	if !rate.IsNullish() && !(rate.AsFloat64() >= 0 && rate.AsFloat64() <= 1) {
		return dst, mongoerr.New(mongoerr.BadValue, "'sampleRate' must be between 0.0 and 1.0 inclusive")
	}
	level, err := command.InRange("profile", op.Req.Cmd, -1<<31, 1<<31-1)
	if err != nil {
		return dst, err
	}
	if level >= 0 && level <= 2 {
		next.level = int(level)
		set = true
	}
	if next.level > 0 && was.level == 0 {
		if err := pr.createProfile(op, op.DB()); err != nil {
			return dst, err
		}
	}
	if set {
		p.set(op.DB(), next)
	}
	if !op.Arg("slowms").IsNullish() {
		p.slowMS.Store(op.Req.Int("slowms", 0))
	}
	if !rate.IsNullish() {
		f := rate.AsFloat64()
		p.sample.Store(&f)
	}
	dst = value.Append(dst, "was", value.NewInt32(int32(was.level)))
	dst = value.Append(dst, "slowms", value.NewInt32(int32(slow)))
	dst = value.Append(dst, "sampleRate", value.NewDouble(sample))
	if was.filter != nil {
		dst = value.Append(dst, "filter", value.NewDocument(was.filter.Serialize()))
		dst = value.Append(dst, "note", value.NewString(profileNote))
	}
	return dst, nil
}

// profileFilter reads the argument filter: a filter, or "unset".
func profileFilter(was dbProfile, v value.Value) (next dbProfile, set bool, err error) {
	next = was
	switch {
	case v.IsMissing():
		return next, false, nil
	case v.T == value.Document:
		next.filter, err = match.Compile(append([]byte(nil), v.Doc()...), &match.Options{Deny: match.DenyWhere | match.DenyText | match.DenyNear})
		return next, true, err
	case v.T == value.String && v.Str() == "unset":
		next.filter = nil
		return next, true, nil
	}
	return next, false, mongoerr.New(mongoerr.BadValue, "Expected an object, or the string \"unset\", for 'filter'.")
}

func (pr *Profiler) set(db string, s dbProfile) {
	m := make(map[string]dbProfile)
	for k, v := range *pr.dbs.Load() {
		m[k] = v
	}
	m[db] = s
	pr.dbs.Store(&m)
}

// createProfile creates a database's system.profile as a capped collection.
func (pr *Profiler) createProfile(ctx context.Context, db string) error {
	ns := db + "." + catalog.Profile
	if pr.Engine.Catalog().Lookup(ns) != nil {
		return nil
	}
	u := pr.Engine.NewUnitOfWork(nil)
	defer u.Rollback()
	_, err := u.CreateCollection(storage.CollectionSpec{NS: ns, Unreplicated: catalog.Unreplicated(ns), NoIDIndex: true, Options: value.Doc(
		value.F("capped", value.NewBool(true)), value.F("size", value.NewInt64(profileSize)))})
	if err == nil {
		_, err = pr.Set.Commit(ctx, u, replication.Visible)
	}
	if mongoerr.CodeOf(err) == mongoerr.NamespaceExists {
		return nil
	}
	return err
}

// Execution is the unit that the log and the profiler report: a command, or one statement of a write command.
type Execution struct {
	Op        *command.Op
	Name      string
	NS        string
	Stats     *command.Stats
	Statement []byte // nil for a command
	Upserted  bool
	Err       error
	Took      time.Duration
}

// ofStatements reports whether a command's statements are reported one by one.
func (x *Execution) ofStatements() bool {
	return x.Statement == nil && (x.Name == "update" || x.Name == "delete")
}

// Note logs and profiles an execution if it was slow, or if the profiler takes all.
func (pr *Profiler) Note(x *Execution) {
	p, op := pr, x.Op
	set := p.of(op.Req.DB)
	slow := x.Took.Milliseconds() >= p.slowMS.Load()
	write := op.Req.Spec.Kind == command.Write && !x.ofStatements()
	all := p.logsAll(write)
	if !slow && !all && set.level < 2 && set.filter == nil {
		return
	}
	logIt, profileIt := all || slow && p.sampled(), set.level == 2 || set.level == 1 && slow && p.sampled()
	var doc []byte
	if set.filter != nil {
		doc = pr.profileDoc(x)
		ok, ferr := set.filter.Fork().Match(doc)
		ok = ok && ferr == nil
		logIt, profileIt = ok, ok && set.level > 0
	}
	if logIt && !neverSlow(x.Name) {
		if log := pr.SlowLog(); log != nil {
			log(op.Client.ID, write, pr.slowAttrs(x))
		}
	}
	if !profileIt || neverProfiled(op) || x.ofStatements() {
		return
	}
	if doc == nil {
		doc = pr.profileDoc(x)
	}
	pr.writeProfile(op.Req.DB, doc)
}

func (pr *Profiler) sampled() bool {
	r := *pr.sample.Load()
	return r >= 1 || rand.Float64() < r
}

// neverSlow reports whether a command waits by design.
func neverSlow(name string) bool {
	switch name {
	case "hello", "isMaster", "awaitData":
		return true
	}
	return false
}

// neverProfiled reports whether an operation concerns only the profiler or the connection, or has no database.
func neverProfiled(op *command.Op) bool {
	switch op.Req.Spec.Name {
	case "hello", "profile", "ping", "endSessions":
		return true
	}
	return op.Req.DB == "local" || op.Req.DB == ""
}

func (pr *Profiler) writeProfile(db string, doc []byte) {
	ns := db + "." + catalog.Profile
	ctx := context.Background()
	if pr.Engine.Catalog().Lookup(ns) == nil {
		if pr.createProfile(ctx, db) != nil {
			return
		}
	}
	s := pr.Engine.Snapshot()
	defer s.Release()
	u := pr.Engine.NewUnitOfWork(s)
	defer u.Rollback()
	c := s.Catalog().Lookup(ns)
	if c == nil {
		return
	}
	if _, err := u.InsertMany(c, [][]byte{doc}, storage.NoInfo); err == nil {
		_, _ = pr.Set.Commit(ctx, u, replication.Visible) // a lost profile entry does no harm
	}
}

// appendCommand appends the request and, for a getMore, the command that opened its cursor; a comment is inherited from
// that command.
func appendCommand(dst []byte, x *Execution) []byte {
	op := x.Op
	if x.Statement != nil {
		return value.Append(dst, "command", value.NewDocument(command.WithoutStored(x.Statement)))
	}
	body := command.WithoutSecrets(op.Req.Body)
	if op.Stats.Origin == nil {
		return value.Append(dst, "command", value.NewDocument(command.Shown(body)))
	}
	if c := value.Lookup(op.Stats.Origin, "comment"); c.T != value.Missing && value.Lookup(body, "comment").T == value.Missing {
		body = value.End(value.Append(append([]byte(nil), body[:len(body)-1]...), "comment", c), 0)
	}
	dst = value.Append(dst, "command", value.NewDocument(command.Shown(body)))
	return value.Append(dst, "originatingCommand", value.NewDocument(op.Stats.Origin))
}

// appendFigures appends the fields that the log and the profiler have in common.
func (pr *Profiler) appendFigures(dst []byte, x *Execution) []byte {
	st := x.Stats
	figure := func(k string, v int64, show bool) {
		if show {
			dst = value.Append(dst, k, value.NewInt64(v))
		}
	}
	kind, name := x.Op.Req.Spec.Kind, x.Name
	reads := kind == command.Read || name == "update" || name == "delete" || name == "findAndModify"
	figure("cursorid", st.CursorID, st.CursorID != 0)
	figure("keysExamined", st.KeysExamined, reads)
	figure("docsExamined", st.DocsExamined, reads)
	if st.CursorExhausted {
		dst = value.Append(dst, "cursorExhausted", value.NewBool(true))
	}
	if st.HasSortStage {
		dst = value.Append(dst, "hasSortStage", value.NewBool(true))
	}
	for _, f := range []struct {
		name string
		set  bool
	}{{"usedDisk", st.UsedDisk}, {"fromMultiPlanner", st.FromMultiPlanner}, {"fromPlanCache", st.FromPlanCache}, {"replanned", st.ReplanReason != ""}} {
		if f.set {
			dst = value.Append(dst, f.name, value.NewBool(true))
		}
	}
	if st.ReplanReason != "" {
		dst = value.Append(dst, "replanReason", value.NewString(st.ReplanReason))
	}
	figure("nMatched", st.NMatched, name == "update")
	figure("nModified", st.NModified, name == "update")
	if name == "update" && x.Statement != nil {
		n := int64(0)
		if x.Upserted {
			n = 1
		}
		figure("nUpserted", n, true)
	}
	figure("ninserted", st.NInserted, name == "insert")
	figure("ndeleted", st.NDeleted, name == "delete")
	figure("nreturned", st.NReturned, name == "find" || name == "getMore" || name == "aggregate")
	figure("keysInserted", st.KeysInserted, st.KeysInserted > 0)
	figure("keysDeleted", st.KeysDeleted, st.KeysDeleted > 0)
	figure("writeConflicts", st.Conflicts, st.Conflicts > 0)
	if st.Plan != nil {
		shape, key := st.Plan.PlanKeys()
		dst = value.Append(dst, "queryHash", value.NewString(shape))
		dst = value.Append(dst, "planCacheShapeHash", value.NewString(shape))
		dst = value.Append(dst, "planCacheKey", value.NewString(key))
		dst = value.Append(dst, "queryFramework", value.NewString("classic"))
	}
	return value.Append(dst, "numYield", value.NewInt32(0))
}

func (pr *Profiler) appendFailure(dst []byte, err error) []byte {
	if err == nil {
		return dst
	}
	e := mongoerr.From(err)
	dst = value.Append(dst, "ok", value.NewInt32(0))
	dst = value.Append(dst, "errMsg", value.NewString(e.Message))
	dst = value.Append(dst, "errName", value.NewString(e.Code.Name()))
	return value.Append(dst, "errCode", value.NewInt32(int32(e.Code)))
}

// profileDoc returns an operation's entry in system.profile.
func (pr *Profiler) profileDoc(x *Execution) []byte {
	op := x.Op
	out, m := value.Begin(nil)
	out = value.Append(out, "op", value.NewString(command.OpKind(x.Name)))
	out = value.Append(out, "ns", value.NewString(x.NS))
	out = appendCommand(out, x)
	out = pr.appendFigures(out, x)
	out = value.Append(out, "locks", value.NewDocument(locksOf(x.Stats)))
	if x.Statement == nil {
		out = value.Append(out, "responseLength", value.NewInt32(int32(op.Stats.ReplyLen)))
		out = value.Append(out, "protocol", value.NewString("op_msg"))
	}
	out = value.Append(out, "cpuNanos", value.NewInt64(x.Took.Nanoseconds()))
	out = value.Append(out, "millis", value.NewInt32(int32(x.Took.Milliseconds())))
	if x.Stats.PlanSummary != "" {
		out = value.Append(out, "planSummary", value.NewString(x.Stats.PlanSummary))
	}
	if x.Stats.Exec != nil {
		out = x.Stats.Exec.AppendExecStats(out)
	}
	out = pr.appendFailure(out, x.Err)
	out = value.Append(out, "ts", value.NewTime(pr.Now()))
	out = value.Append(out, "client", value.NewString(hostOf(op.Client.Remote)))
	if _, app := op.Client.Metadata(); app != "" {
		out = value.Append(out, "appName", value.NewString(app))
	}
	return value.End(appendUser(out, op), m)
}

// appendUser appends the user who has authenticated on the operation's connection.
func appendUser(out []byte, op *command.Op) []byte {
	var all []value.Value
	text := ""
	if name, ok := op.ConnectionUser(); ok {
		all = append(all, value.NewDocument(value.Doc(value.F("user", value.NewString(name.User)), value.F("db", value.NewString(name.DB)))))
		text = name.String()
	}
	out = value.Append(out, "allUsers", value.NewArray(value.ArrayOf(all...)))
	return value.Append(out, "user", value.NewString(text))
}

// slowAttrs returns the attributes of the log line "Slow query".
func (pr *Profiler) slowAttrs(x *Execution) []byte {
	op, kind, ns := x.Op, slowType(x.Name), x.NS
	if x.ofStatements() {
		kind, ns = "command", op.Req.DB+".$cmd" // each statement has a line of its own
	}
	out, m := value.Begin(nil)
	out = value.Append(out, "type", value.NewString(kind))
	out = value.Append(out, "isFromUserConnection", value.NewBool(!op.Client.Internal && !op.Client.InProcess))
	out = value.Append(out, "ns", value.NewString(ns))
	out = value.Append(out, "collectionType", value.NewString(collectionType(catalog.CollOf(ns))))
	if _, app := op.Client.Metadata(); app != "" {
		out = value.Append(out, "appName", value.NewString(app))
	}
	out = appendCommand(out, x)
	if !x.ofStatements() {
		if x.Stats.PlanSummary != "" {
			out = value.Append(out, "planSummary", value.NewString(x.Stats.PlanSummary))
		}
		out = pr.appendFigures(out, x)
	}
	out = pr.appendFailure(out, x.Err)
	if x.Statement == nil {
		out = value.Append(out, "reslen", value.NewInt32(int32(op.Stats.ReplyLen)))
	}
	out = value.Append(out, "locks", value.NewDocument(locksOf(x.Stats)))
	out = value.Append(out, "remote", value.NewString(op.Client.Remote))
	if x.Statement == nil {
		out = value.Append(out, "protocol", value.NewString("op_msg"))
	}
	out = value.Append(out, "durationMillis", value.NewInt64(x.Took.Milliseconds()))
	return value.End(out, m)
}

func slowType(name string) string {
	switch name {
	case "update", "delete", "insert":
		return map[string]string{"update": "update", "delete": "remove", "insert": "insert"}[name]
	}
	return "command"
}

func collectionType(coll string) string {
	switch {
	case coll == "" || coll == "$cmd":
		return "none"
	case len(coll) > 7 && coll[:7] == "system.":
		return "system"
	}
	return "normal"
}

// opNS returns the namespace an operation worked on, or its database's $cmd.
func opNS(op *command.Op) string {
	if op.Stats.NS != "" {
		return op.Stats.NS
	}
	return op.Req.DB + ".$cmd"
}

func hostOf(addr string) string {
	for i := len(addr) - 1; i >= 0; i-- {
		if addr[i] == ':' {
			return addr[:i]
		}
	}
	return addr
}

// locksOf returns the locks that an operation has acquired. Reads acquire none: they use a snapshot.
func locksOf(st *command.Stats) []byte {
	if st.Locks == nil {
		return value.Doc()
	}
	return st.Locks.Stats().Doc()
}
