// Package msg has the commands that the nodes of a cluster send each other, one Go type for each.
//
// A type describes its command once, in a method that names every field with its type and its Go variable. Append
// and Parse both follow that description, so that sender and receiver cannot spell a field differently, and
// Describe passes it to the command table:
//
//	sender    Doc(&MoveRange{NS: …})  ──►  {_configsvrMoveRange: …, toShard: …, $db: "admin"}
//	receiver  command.Internal's row  ──►  Parse  ──►  the handler, with a *MoveRange
//
// Invariants:
//
//  1. Parse reads back what Append writes: an optional field is written if it differs from its default, which Parse sets if
//     the field is missing.
//  2. Parse refuses a required field that is missing, a field of another type, a field sent twice and one that the type
//     does not know. The arguments that any command may have (Generic) are accepted; the command's pipeline reads them.
//  3. Parse borrows from the document: raw documents that outlive the request must be copied.
//  4. All lists every type. The tests and the fuzz target iterate over that list.
package msg
