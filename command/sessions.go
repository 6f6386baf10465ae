package command

import (
	"strconv"

	"github.com/shoaldb/shoal/auth"
	"github.com/shoaldb/shoal/cluster"
	"github.com/shoaldb/shoal/cluster/msg"
	"github.com/shoaldb/shoal/query/value"
)

// sessionSpecs returns the commands on logical sessions.
func (b *Base) sessionSpecs() []Spec {
	list := func(name string, run Handler) Spec {
		return Spec{Name: name, Roles: All, ArgTypes: TArray, Lenient: true, Run: run, API: name == "endSessions" || name == "refreshSessions"}
	}
	return []Spec{
		{Name: "startSession", Roles: All, Lenient: true, Run: b.runStartSession},
		list("endSessions", b.runEndSessions),
		list("refreshSessions", b.runRefreshSessions),
		list("killSessions", b.runKillSessions),
		list("killAllSessions", b.runKillAllSessions),
		list("killAllSessionsByPattern", b.runKillByPattern),
		{Name: "refreshLogicalSessionCacheNow", Roles: All, AdminOnly: true, Run: func(op *Op, dst []byte) ([]byte, error) {
			return dst, b.Sessions.Sync(op)
		}},
		{Name: "reapLogicalSessionCacheNow", Roles: All, AdminOnly: true, Run: func(op *Op, dst []byte) ([]byte, error) {
			if b.Reap == nil {
				return dst, nil // only data-bearing nodes know the transactions and statements of sessions
			}
			return dst, b.Reap(op)
		}},
	}
}

func (b *Base) runStartSession(op *Op, dst []byte) ([]byte, error) {
	id := cluster.NewSessionID(op.Owner())
	if err := b.Sessions.Touch(id); err != nil {
		return dst, err
	}
	dst, m := value.BeginKey(dst, value.Document, "id")
	dst = value.Append(dst, "id", value.NewBinary(4, id.ID[:]))
	dst = value.End(dst, m)
	return value.Append(dst, "timeoutMinutes", value.NewInt32(op.Service.sessionMinutes())), nil
}

// sessionList reads the array of lsids that the session commands take.
func sessionList(op *Op) ([]cluster.LogicalSessionID, error) {
	var out []cluster.LogicalSessionID
	for i, v := range value.Values(op.Req.Cmd.Doc()) {
		if v.IsNullish() {
			continue
		}
		if v.T != value.Document {
			return nil, WrongType(op.Req.Spec.Name+"."+op.Req.Spec.Name+"."+strconv.Itoa(i), v.T, TObject)
		}
		id, err := cluster.ParseLSID(v.Doc(), op.Owner())
		if err != nil {
			return nil, err
		}
		if !value.Lookup(v.Doc(), "uid").IsMissing() && !op.Allowed("impersonate", "", "") {
			return nil, errForeignDigest
		}
		out = append(out, id.Parent())
	}
	return out, nil
}

// OwnedSessions returns a client's command that kills sessions in the form in which nodes send it to each other: with the owner of
// each session. "All sessions of the user" becomes a pattern with the user's digest, since the sender is a member and not that
// user.
func (op *Op) OwnedSessions() msg.Message {
	switch op.Req.Spec.Name {
	case "killAllSessions":
		return &msg.KillAllSessions{Which: op.Req.Cmd}
	case "killAllSessionsByPattern":
		return &msg.KillSessionsByPattern{Which: patternsBelow(op)}
	}
	ids, err := sessionList(op)
	if err != nil {
		return &msg.KillSessions{Which: op.Req.Cmd}
	}
	if len(ids) == 0 && op.Service.enforces() {
		owner := op.Owner()
		return &msg.KillSessionsByPattern{Which: value.NewArray(value.ArrayOf(value.NewDocument(value.Doc(value.F("uid", value.NewBinary(0, owner[:]))))))}
	}
	vals := make([]value.Value, len(ids))
	for i, id := range ids {
		vals[i] = value.NewDocument(id.Doc())
	}
	return &msg.KillSessions{Which: value.NewArray(value.ArrayOf(vals...))}
}

func (b *Base) runEndSessions(op *Op, dst []byte) ([]byte, error) {
	ids, err := sessionList(op)
	if err == nil {
		b.Sessions.End(ids)
	}
	return dst, err
}

func (b *Base) runRefreshSessions(op *Op, dst []byte) ([]byte, error) {
	ids, err := sessionList(op)
	if err != nil {
		return dst, err
	}
	for _, id := range ids {
		if err := b.Sessions.Touch(id); err != nil {
			return dst, err
		}
	}
	return dst, nil
}

func (b *Base) runKillSessions(op *Op, dst []byte) ([]byte, error) {
	ids, err := sessionList(op)
	if err != nil {
		return dst, err
	}
	owner := op.Owner()
	b.kill(op, func(id cluster.LogicalSessionID) bool {
		for _, k := range ids {
			if k.ID == id.ID && k.UID == id.UID {
				return true
			}
		}
		return len(ids) == 0 && (!op.Service.enforces() || id.UID == owner)
	})
	return dst, b.killBelow(op)
}

// runKillAllSessions kills the sessions of some users, or of all. Without authentication a session has no user, so no
// user's name matches it.
func (b *Base) runKillAllSessions(op *Op, dst []byte) ([]byte, error) {
	path, users := op.Req.Spec.Name+"."+op.Req.Spec.Name, 0
	owners := make(map[[32]byte]bool)
	for i, v := range value.Values(op.Req.Cmd.Doc()) {
		if v.IsNullish() {
			continue
		}
		if v.T != value.Document {
			return dst, WrongType(path+"."+strconv.Itoa(i), v.T, TObject)
		}
		user, err := readUser(path, v.Doc())
		if err != nil {
			return dst, err
		}
		owners[user.Digest()] = true
		users++
	}
	b.kill(op, func(id cluster.LogicalSessionID) bool { return users == 0 || owners[id.UID] })
	return dst, b.killBelow(op)
}

// readUser reads {user, db}.
func readUser(path string, doc []byte) (auth.UserName, error) {
	name, err := readName(path, "user", doc)
	return auth.UserName{User: name[0], DB: name[1]}, err
}

// readName reads {kind, db}, the name of a user or role.
func readName(path, kind string, doc []byte) (name [2]string, err error) {
	var found [2]bool
	for k, v := range value.Elements(doc) {
		i := 0
		switch k {
		case kind:
		case "db":
			i = 1
		default:
			return name, UnknownField(path + "." + k)
		}
		if v.IsNullish() {
			continue
		}
		if v.T != value.String {
			return name, WrongType(path+"."+k, v.T, TString)
		}
		name[i], found[i] = v.Str(), true
	}
	for i, k := range []string{kind, "db"} {
		if !found[i] {
			return name, MissingField(path + "." + k)
		}
	}
	return name, nil
}

// kill ends the operations and cursors of the sessions for which f returns true.
func (b *Base) kill(self *Op, f func(cluster.LogicalSessionID) bool) {
	b.Service.EachOp(func(op *Op) {
		if op == self || op.Req.LSID == nil {
			return
		}
		if id, err := cluster.ParseLSID(op.Req.LSID, cluster.NoUser); err == nil && f(id.Parent()) {
			op.Kill(interrupted)
		}
	})
	if b.KillCursors != nil {
		b.KillCursors(f)
	}
}

// killBelow makes the nodes below kill what this node has just killed.
func (b *Base) killBelow(op *Op) error {
	if b.KillBelow == nil {
		return nil
	}
	return b.KillBelow(op)
}

// sessionMinutes returns the session lifetime reported to clients.
func (s *Service) sessionMinutes() int32 {
	if s.minutes > 0 {
		return s.minutes
	}
	return SessionMinutes
}
