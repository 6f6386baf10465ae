// Package commandtest makes tests that run commands detect a mistake that no reply shows: a handler that reads an argument
// for which its command has no field. It is enough to import it, in one test file of a package:
//
//	import _ "github.com/shoaldb/shoal/command/commandtest"
//
// If several commands share a handler, the arguments that only some of them have are read with Request.Shared.
package commandtest
