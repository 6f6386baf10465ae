// Package turns shares processors between the writers of a node and the many streams that follow them.
//
// Each look at what is new costs a stream a little, and each answer more, however few events it has: an answer, the client's next
// request and the work for both. Streams that look at every event at once take most of the processors from those who write, and look
// twice as often only to find half as much. Turns grants looks at the rate that a share of the processors allows; a stream that comes when there are none
// left waits for its turn, and finds more. While streams look rarely, or nobody writes, none waits. If something waits for a
// processor, streams are granted half an answer for each event written: an answer then has two events or more.
//
// Invariants
//
//  1. Each queued callback is called once, in the order of the calls to Queue.
//  2. No callback runs while a lock of Turns is held, and none on the goroutine that queued it.
package turns
