package command

import (
	"github.com/shoaldb/shoal/cluster"
	"github.com/shoaldb/shoal/query/value"
)

// sessionSpecs are the commands over logical sessions.
func (b *Base) sessionSpecs() []Spec {
	list := func(name string, run Handler) Spec {
		return Spec{Name: name, Roles: All, ArgTypes: TArray, Run: run, API: name == "endSessions" || name == "refreshSessions" || name == "killSessions"}
	}
	return []Spec{
		{Name: "startSession", Roles: All, Run: b.runStartSession},
		list("endSessions", b.runEndSessions),
		list("refreshSessions", b.runRefreshSessions),
		list("killSessions", b.runKillSessions),
		list("killAllSessions", b.runKillAllSessions),
		list("killAllSessionsByPattern", b.runKillAllSessions),
		{Name: "refreshLogicalSessionCacheNow", Roles: All, AdminOnly: true, Run: func(op *Op, dst []byte) ([]byte, error) {
			return dst, b.Sessions.Sync(op)
		}},
	}
}

func (b *Base) runStartSession(op *Op, dst []byte) ([]byte, error) {
	id := cluster.NewSessionID(cluster.NoUser)
	if err := b.Sessions.Touch(id); err != nil {
		return dst, err
	}
	dst, m := value.BeginKey(dst, value.Document, "id")
	dst = value.Append(dst, "id", value.NewBinary(4, id.ID[:]))
	dst = value.End(dst, m)
	return value.Append(dst, "timeoutMinutes", value.NewInt32(SessionMinutes)), nil
}

// sessionList reads the array of lsids that the session commands take.
func sessionList(op *Op) ([]cluster.LogicalSessionID, error) {
	var out []cluster.LogicalSessionID
	for i, v := range value.Values(op.Req.Cmd.Doc()) {
		if v.T != value.Document {
			return nil, WrongType(op.Req.Spec.Name+"."+op.Req.Spec.Name+"."+itoa(i), v.T, TObject)
		}
		id, err := cluster.ParseLSID(v.Doc(), cluster.NoUser)
		if err != nil {
			return nil, err
		}
		out = append(out, id)
	}
	return out, nil
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
	b.kill(op, func(id cluster.LogicalSessionID) bool {
		for _, k := range ids {
			if k.ID == id.ID {
				return true
			}
		}
		return len(ids) == 0
	})
	return dst, nil
}

func (b *Base) runKillAllSessions(op *Op, dst []byte) ([]byte, error) {
	for i, v := range value.Values(op.Req.Cmd.Doc()) {
		if v.T != value.Document {
			return dst, WrongType(op.Req.Spec.Name+"."+op.Req.Spec.Name+"."+itoa(i), v.T, TObject)
		}
	}
	b.kill(op, func(cluster.LogicalSessionID) bool { return true })
	return dst, nil
}

// kill ends what runs in the sessions that f names: their operations and cursors.
func (b *Base) kill(self *Op, f func(cluster.LogicalSessionID) bool) {
	b.Service.EachOp(func(op *Op) {
		if op == self || op.Req.LSID == nil {
			return
		}
		if id, err := cluster.ParseLSID(op.Req.LSID, cluster.NoUser); err == nil && f(id) {
			op.Kill(interrupted)
		}
	})
	if b.KillCursors != nil {
		b.KillCursors(f)
	}
}
