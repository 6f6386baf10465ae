// Package writetest provides writers for tests, over an empty store in memory and on a node whose refusals the test sets.
package writetest
