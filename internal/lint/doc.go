// Package lint has the tests that keep the code in shape: rooms import downhill, functions stay short, nothing
// promises work that is not there.
package lint
