package shardnode

import "github.com/shoaldb/shoal/replication"

// machine is the node's store as a set of several members drives it.
func (n *Node) machine() (replication.StateMachine, replication.LocalStore) { return nil, nil }
