// Package lint holds the tests that keep the shape of the code: rooms import downhill, functions stay short, nothing
// promises work that is not there.
package lint
