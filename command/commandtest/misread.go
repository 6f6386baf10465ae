package commandtest

import (
	"fmt"
	"runtime/debug"

	"github.com/shoaldb/shoal/command"
)

func init() {
	command.Misread = func(name, field string) {
		err := fmt.Sprintf("%s has no field %s, which it reads\n%s", name, field, debug.Stack())
		go panic(err) // in a goroutine of its own, since a request recovers from panics
	}
}
