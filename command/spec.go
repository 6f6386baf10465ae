package command

import (
	"fmt"
	"maps"
	"slices"
	"sort"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/shoaldb/shoal/auth"
	"github.com/shoaldb/shoal/query/value"
)

// Role is the set of server roles that know a command.
type Role uint8

const (
	Shard Role = 1 << iota
	Router
	Config
	All = Shard | Router | Config
)

// Kind classifies commands by their effect on data: it determines locks, read preference checks and opcounters.
type Kind uint8

const (
	None  Kind = iota // touches no user data
	Read              // reads documents or the catalog
	Write             // writes documents
	DDL               // changes the catalog
)

// Types is a set of accepted BSON types of a field, after the server's interface definitions.
type Types uint8

const (
	TString    Types = 1 << iota
	TObject          // object
	TArray           // array
	TNumber          // any number, no check of the fraction ("safeInt")
	TBool            // strictly bool
	TSafeBool        // bool or any number
	TInt             // int or long only, exact
	TOther           // any other type: with all bits set, anything
	TAny       Types = 0xFF
	TObjOrArr        = TObject | TArray
	TStringInt       = TString | TNumber
)

// Field is one argument of a command.
type Field struct {
	Name     string
	Types    Types
	Required bool
	NotNull  bool
	Refusal  string // text of the error for another type, where it is not the usual one
	Expected string // what the error about another type expects, where that is not Types' own text
}

// Opt returns an optional field, for which null counts as not sent; Req a required one; Strict an optional one
// that must not be null.
func Opt(name string, t Types) Field    { return Field{Name: name, Types: t} }
func Req(name string, t Types) Field    { return Field{Name: name, Types: t, Required: true} }
func Strict(name string, t Types) Field { return Field{Name: name, Types: t, NotNull: true} }

// Kept returns an optional field that must be a document, and not null. The missing space is the real server's.
func Kept(name string) Field {
	return Field{Name: name, Types: TObject, NotNull: true, Refusal: "Expected field " + name + "to be of type object"}
}

// Handler runs a command: it appends the reply's elements to dst.
type Handler func(op *Op, dst []byte) ([]byte, error)

// Spec is one row of the command table.
type Spec struct {
	Name    string
	Aliases []string
	Roles   Role
	Kind    Kind

	AdminOnly    bool  // must be sent to the admin database
	ArgTypes     Types // types of the command's own value; 0 = any
	Namespace    bool  // the command's value is a collection name
	ReadConcern  bool  // accepts a level other than local
	WriteConcern bool
	Txn          bool // may run in a transaction
	Retryable    bool // may carry txnNumber outside a transaction
	API          bool // in stable API version 1
	PrimaryOnly  bool // refused on secondaries, as commands of the kinds Write and DDL are
	TestOnly     bool // only with enableTestCommands
	Internal     bool // between nodes; not listed to users
	NoAuth       bool // runs before authentication
	Fields       []Field
	Lenient      bool // tolerates unknown fields, as the real command does
	TimeToWait   bool // its maxTimeMS limits the wait for data and is not a deadline
	NotBuilt     bool // replies NotImplemented, by name

	Run Handler

	made struct {
		index map[string]int // positions of fields by name
		rule  *auth.Rule     // the privileges that it requires
	}
}

// Primary reports whether only a primary runs the command.
func (s *Spec) Primary() bool { return s.Kind == Write || s.Kind == DDL || s.PrimaryOnly }

// structs are the commands that errors about their arguments call by the name of their structure.
var structs = map[string]string{"find": "FindCommandRequest", "distinct": "distinctCommandRequest"}

// path returns what errors call the argument.
func (s *Spec) path(field string) string {
	if name, ok := structs[s.Name]; ok {
		return name + "." + field
	}
	return s.Name + "." + field
}

// Has reports whether the command has a field of that name.
func (s *Spec) Has(field string) bool {
	_, ok := s.made.index[field]
	return ok
}

// Table holds the commands of one service by name and alias. Rows may be added while it is read: a server may become a
// shard, or the config server's primary, while it runs.
type Table struct {
	mu    sync.Mutex // serialises Add
	state atomic.Pointer[tableState]
}

type tableState struct {
	byName map[string]*Spec
	specs  []*Spec
}

// NewTable makes an empty table.
func NewTable() *Table {
	t := &Table{}
	t.state.Store(&tableState{byName: make(map[string]*Spec)})
	return t
}

// Add registers rows. A second row with the same name replaces the first: a role can refine a generic command.
func (t *Table) Add(specs ...Spec) {
	t.mu.Lock()
	defer t.mu.Unlock()
	old := t.state.Load()
	next := &tableState{byName: maps.Clone(old.byName), specs: slices.Clone(old.specs)}
	next.add(specs)
	t.state.Store(next)
}

func (t *tableState) add(specs []Spec) {
	for i := range specs {
		s := specs[i]
		s.made.index = make(map[string]int, len(s.Fields))
		s.made.rule = auth.RuleFor(s.Name)
		for j, f := range s.Fields {
			if _, dup := s.made.index[f.Name]; dup {
				panic(fmt.Sprintf("command %s: field %s twice in the table", s.Name, f.Name))
			}
			s.made.index[f.Name] = j
		}
		if old := t.byName[s.Name]; old != nil {
			for k, o := range t.specs {
				if o == old {
					t.specs[k] = &s
				}
			}
		} else {
			t.specs = append(t.specs, &s)
		}
		t.byName[s.Name] = &s
		for _, a := range s.Aliases {
			t.byName[a] = &s
		}
	}
}

// Lookup finds a command by name or alias; command names are case-sensitive.
func (t *Table) Lookup(name string) *Spec { return t.state.Load().byName[name] }

// Specs lists the rows in order of name.
func (t *Table) Specs() []*Spec {
	out := slices.Clone(t.state.Load().specs)
	sort.Slice(out, func(i, j int) bool { return out[i].Name < out[j].Name })
	return out
}

// accepts reports whether a value of type vt is allowed by t.
func (t Types) accepts(vt value.Type) bool {
	if t == TAny {
		return true
	}
	switch vt {
	case value.String:
		return t&TString != 0
	case value.Document:
		return t&TObject != 0
	case value.Array:
		return t&TArray != 0
	case value.Int32, value.Int64:
		return t&(TNumber|TSafeBool|TInt) != 0
	case value.Double, value.Decimal128:
		return t&(TNumber|TSafeBool) != 0
	case value.Boolean:
		return t&(TBool|TSafeBool) != 0
	}
	return t&TOther != 0
}

// String lists the types as the error text does: one bare name, or several in brackets.
func (t Types) String() string {
	var n []string
	if t&TSafeBool != 0 {
		n = append(n, "bool", "long", "int", "decimal", "double")
	} else {
		if t&TBool != 0 {
			n = append(n, "bool")
		}
		if t&TNumber != 0 {
			n = append(n, "long", "int", "decimal", "double")
		} else if t&TInt != 0 {
			n = append(n, "long", "int")
		}
	}
	if t&TString != 0 {
		n = append(n, "string")
	}
	if t&TObject != 0 {
		n = append(n, "object")
	}
	if t&TArray != 0 {
		n = append(n, "array")
	}
	if len(n) == 1 {
		return "type '" + n[0] + "'"
	}
	return "types '[" + strings.Join(n, ", ") + "]'"
}

// AdminOnly returns the row of a command of the admin database whose own value is ignored.
func AdminOnly(name string, run Handler, fields ...Field) Spec {
	return Spec{Name: name, Roles: All, AdminOnly: true, Fields: fields, Run: run}
}
