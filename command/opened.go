package command

import "github.com/shoaldb/shoal/query/value"

// A pipeline whose first batch is to be empty runs its $out or $merge in a getMore, which writes with the arguments of the aggregate.

// Opened returns an argument of the command that opened a getMore's cursor or, for any other command, of the command itself.
func (op *Op) Opened(name string) value.Value {
	if op.Stats.Origin != nil {
		return value.Lookup(op.Stats.Origin, name)
	}
	return op.Req.Shared(name)
}

// AdoptConcern gives a getMore the write concern of the command that has opened its cursor.
func (op *Op) AdoptConcern() error {
	doc := value.LookupDoc(op.Stats.Origin, "writeConcern")
	if doc == nil || op.Req.WriteConcern != nil {
		return nil
	}
	wc, err := ParseWriteConcern(doc)
	if err == nil {
		op.Req.WriteConcern = &wc
	}
	return err
}
