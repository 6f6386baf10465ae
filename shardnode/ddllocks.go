package shardnode

import (
	"github.com/shoaldb/shoal/command"
	"github.com/shoaldb/shoal/storage/catalog"
	"github.com/shoaldb/shoal/storage/lock"
)

// ddlLocks keeps catalog changes and writes of one namespace apart: writers hold the collection in IX, catalog changes
// in X, both with the intents above it.
type ddlLocks struct{ m *lock.Manager }

func (d *ddlLocks) init() { d.m = lock.NewManager() }

// lockCollection takes a collection and gives the function that lets it go.
func (n *Node) lockCollection(op *command.Op, ns string, mode lock.Mode) (unlock func(), err error) {
	l := n.ddl.m.NewLocker()
	if err := l.LockCollection(op, catalog.DBOf(ns), ns, mode); err != nil {
		l.UnlockAll()
		return nil, err
	}
	return l.UnlockAll, nil
}

// lockDatabase takes a whole database.
func (n *Node) lockDatabase(op *command.Op, db string, mode lock.Mode) (unlock func(), err error) {
	l := n.ddl.m.NewLocker()
	if err := l.LockDatabase(op, db, mode); err != nil {
		l.UnlockAll()
		return nil, err
	}
	return l.UnlockAll, nil
}
