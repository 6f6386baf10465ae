// Package await has the waits of all tests: a test waits until something is so, not for a time after which it should be so.
//
//	True(t, what, is)    until is() holds
//	State(t, what, look) until look() is done; a failure shows the last state it saw
//	Progress(…)          the same, for as long as that state changes
//
// A wait ends the test only when both are over, patience and a number of looks: on a machine that is slow or busy a look takes
// longer, and the wait with it. In a bubble of testing/synctest the time is the bubble's.
package await
