package replication

// Durable is the concern of a node's own state documents: what is committed with it outlives every minority.
var Durable = WriteConcern{W: -1, J: true}

// Visible is the concern of a commit that only has to be visible, as all commits of a command but its last one.
var Visible = WriteConcern{W: 1}
