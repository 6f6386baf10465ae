// Package commandtest makes tests that run commands notice a mistake which no reply shows: a handler that reads an argument
// which its command has no field for. To import it is enough, in one test file of a package:
//
//	import _ "github.com/shoaldb/shoal/command/commandtest"
//
// Arguments that only some of the commands have which share a handler are read with Request.Shared.
package commandtest

import (
	"fmt"
	"runtime/debug"

	"github.com/shoaldb/shoal/command"
)

func init() {
	command.Misread = func(name, field string) {
		err := fmt.Sprintf("%s has no field %s, which it reads\n%s", name, field, debug.Stack())
		go panic(err) // of its own goroutine, for a request recovers from panics
	}
}
