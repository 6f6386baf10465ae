package replication

// Durable is the write concern for a node's own state documents: what is committed with it survives the loss of
// any minority.
var Durable = WriteConcern{W: -1, J: true}

// Visible is the write concern of a commit that only has to become visible, as for all commits of a command except
// the last.
var Visible = WriteConcern{W: 1}
