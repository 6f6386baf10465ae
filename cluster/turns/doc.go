// Package turns shares processors between the writers of a node and the many streams that follow them.
//
// Each look for new events costs a stream a little, and each answer more, however few events it has: the reply, the client's next
// request and the work for both. Streams that look after every single event take most of the processors from the writers, and a stream that
// looks twice as often only finds half as much each time. Turns grants looks at the rate that a share of the processors allows; a stream that comes when there are none
// left waits for its turn, and finds more. While streams look rarely, or nobody writes, none waits. While tasks wait for a
// processor, streams are granted a third of an answer for each event written: an answer then has three events or more. A stream that asks for
// little, whatever was spent before, does not wait.
//
// Invariants
//
//  1. Each queued callback is called once, in the order of the calls to Queue.
//  2. No callback runs while a lock of Turns is held, and none on the goroutine that queued it.
package turns
