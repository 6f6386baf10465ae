// Package turns shares processors between the writers of a node and the many streams that follow them.
//
// Each look at what is new costs a stream a little, and each answer more, however few events it has: an answer, the client's next
// request and the work for both. Streams that look at every event at once take most of the processors from those who write, and look
// twice as often only to find half as much. Turns gives looks out as a part of the processors allows; who comes when there are none
// left waits for its turn, and finds more. While little is looked at, or nobody writes, nobody waits. Where somebody waits for a
// processor, streams are given half an answer for each event that is written: an answer then has two events or more.
//
// Invariants
//
//  1. Whoever queues is called once, in the order of the calls to Queue.
//  2. No callback runs while a lock of Turns is held, and none on the goroutine that queued it.
package turns
