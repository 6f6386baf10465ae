// Package turns shares processors between the writers of a node and the many streams that follow them.
//
// Each check for new events (a look) has a small cost, and each answer a larger one, however few events it has: the reply, the client's next request and the
// work for both. Streams that check after every single event would take most of the processor time from the writers, and a stream that checks twice as often
// only finds half as many events each time. Turns grants looks at a rate that corresponds to a share of the processors; a stream that exceeds it waits for its
// turn, and then finds more events. While streams look rarely, or nothing is written, none waits. While tasks wait for a processor, streams are granted a third
// of an answer for each event written, so that an answer has three events or more. A stream with a low demand does not wait, whatever was spent before.
//
// Invariants
//
//  1. Each queued callback is called once, in the order of the calls to Queue.
//  2. No callback runs while a lock of Turns is held, and none on the goroutine that queued it.
package turns
