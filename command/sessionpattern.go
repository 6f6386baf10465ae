package command

import (
	"context"
	"slices"
	"strconv"

	"github.com/shoaldb/shoal/auth"
	"github.com/shoaldb/shoal/cluster"
	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// sessionPattern selects the sessions of killAllSessionsByPattern by their id, or by their owner, who is given by digest, name or role.
type sessionPattern struct {
	all    bool // there is no pattern
	ids    map[[16]byte]bool
	owners map[[32]byte]bool
	roles  []auth.RoleName
}

func (p *sessionPattern) matches(id cluster.LogicalSessionID) bool {
	return p.all || p.ids[id.ID] || p.owners[id.UID]
}

// runKillByPattern kills the sessions that match one of the patterns.
func (b *Base) runKillByPattern(op *Op, dst []byte) ([]byte, error) {
	p, err := readSessionPattern(op)
	if err == nil {
		err = p.addOwners(op)
	}
	if err != nil {
		return dst, err
	}
	b.kill(op, p.matches)
	return dst, b.killBelow(op)
}

func readSessionPattern(op *Op) (*sessionPattern, error) {
	path := op.Req.Spec.Name + "." + op.Req.Spec.Name
	p := &sessionPattern{all: true, ids: map[[16]byte]bool{}, owners: map[[32]byte]bool{}}
	for i, v := range value.Values(op.Req.Cmd.Doc()) {
		if v.T != value.Document {
			return nil, WrongType(path+"."+strconv.Itoa(i), v.T, TObject)
		}
		for k, e := range value.Elements(v.Doc()) {
			p.all = false
			if err := p.add(op, path, k, e); err != nil {
				return nil, err
			}
		}
	}
	return p, nil
}

// add reads one field of a pattern.
func (p *sessionPattern) add(op *Op, path, k string, e value.Value) error {
	switch k {
	case "lsid":
		if e.T != value.Document {
			return WrongType(path+".lsid", e.T, TObject)
		}
		id, err := cluster.ParseLSID(e.Doc(), op.Owner())
		if err != nil {
			return err
		}
		p.ids[id.ID] = true
	case "uid":
		if e.T != value.Binary || len(e.Bytes()) != 32 {
			return mongoerr.Newf(mongoerr.TypeMismatch, "BSON field '%s.uid' is the wrong type '%s', expected type 'binData'", path, e.T.Name())
		}
		p.owners[[32]byte(e.Bytes())] = true
	case "users", "roles":
		if e.T != value.Array {
			return WrongType(path+"."+k, e.T, TArray)
		}
		for i, v := range value.Values(e.Doc()) {
			at := path + "." + k
			if v.T != value.Document {
				return WrongType(at+"."+strconv.Itoa(i), v.T, TObject)
			}
			name, err := readName(at, k[:4], v.Doc())
			if err != nil {
				return err
			}
			if k == "users" {
				p.owners[auth.UserName{User: name[0], DB: name[1]}.Digest()] = true
			} else {
				p.roles = append(p.roles, auth.RoleName{Role: name[0], DB: name[1]})
			}
		}
	default:
		return UnknownField(path + "." + k)
	}
	return nil
}

// addOwners adds the users who have one of the roles.
func (p *sessionPattern) addOwners(op *Op) error {
	if len(p.roles) == 0 || !op.Service.enforces() {
		return nil // without authorization sessions belong to nobody
	}
	return op.Service.Access.ownersWith(op, op.Service, p.roles, p.owners)
}

// ownersWith adds to a set the session owners who have one of the roles, directly or by inheritance: stored users, and clients of the
// service whose roles come from elsewhere.
func (a *Access) ownersWith(ctx context.Context, s *Service, roles []auth.RoleName, to map[[32]byte]bool) error {
	add := func(id *auth.Identity) {
		if slices.ContainsFunc(roles, func(r auth.RoleName) bool { return slices.Contains(id.AllRoles, r) }) {
			to[id.Owner] = true
		}
	}
	docs, err := a.find(ctx, "system.users", value.Doc())
	if err != nil {
		return err
	}
	for _, doc := range docs {
		u, err := auth.ParseUser(doc)
		if err != nil {
			return err
		}
		id, err := auth.NewIdentity(u, a.roles(ctx))
		if err != nil {
			return err
		}
		add(id)
	}
	s.EachClient(func(c *Client) {
		if id := c.LoggedIn(); id != nil && id.Lent {
			add(id)
		}
	})
	return nil
}

// patternsBelow returns the patterns of a command as the nodes below are to apply them. Roles are resolved here: only this node has
// the clients whose roles come from elsewhere.
func patternsBelow(op *Op) value.Value {
	p, err := readSessionPattern(op)
	if err != nil || len(p.roles) == 0 || p.addOwners(op) != nil {
		return op.Req.Cmd
	}
	list := []value.Value{value.NewDocument(value.Doc(value.F("users", value.NewArray(value.ArrayOf()))))} // matches nothing, so that no pattern is not all sessions
	for owner := range p.owners {
		list = append(list, value.NewDocument(value.Doc(value.F("uid", value.NewBinary(0, owner[:])))))
	}
	for id := range p.ids {
		session := cluster.LogicalSessionID{ID: id, UID: op.Owner()}
		list = append(list, value.NewDocument(value.Doc(value.F("lsid", value.NewDocument(session.Doc())))))
	}
	return value.NewArray(value.ArrayOf(list...))
}
