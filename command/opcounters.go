package command

import (
	"sync/atomic"

	"github.com/shoaldb/shoal/query/value"
)

// Opcounters count the operations since the process started, as serverStatus.opcounters shows them: writes by
// document or statement, everything else by command.
type Opcounters struct {
	Inserts, Queries, Updates, Deletes, Getmores, Commands atomic.Int64
}

// Note counts an operation that has ended. Writes are counted where their statements run.
func (c *Opcounters) Note(op *Op) {
	switch op.Req.Spec.Name {
	case "find":
		c.Queries.Add(1)
	case "getMore":
		c.Getmores.Add(1)
	case "insert", "update", "delete":
	default:
		c.Commands.Add(1)
	}
}

// NoteWrite counts n statements of the named write command.
func (c *Opcounters) NoteWrite(name string, n int) {
	switch name {
	case "insert":
		c.Inserts.Add(int64(n))
	case "update":
		c.Updates.Add(int64(n))
	case "delete":
		c.Deletes.Add(int64(n))
	}
}

// Writes returns how many documents and statements were written.
func (c *Opcounters) Writes() int64 { return c.Inserts.Load() + c.Updates.Load() + c.Deletes.Load() }

// Section returns the section opcounters of serverStatus.
func (c *Opcounters) Section() StatusSection {
	return StatusSection{Name: "opcounters", Doc: func(*Op, value.Value) []byte {
		return value.Doc(i64("insert", c.Inserts.Load()), i64("query", c.Queries.Load()), i64("update", c.Updates.Load()),
			i64("delete", c.Deletes.Load()), i64("getmore", c.Getmores.Load()), i64("command", c.Commands.Load()))
	}}
}
