package command

import (
	_ "embed"
	"strings"
	"sync"

	"github.com/shoaldb/shoal/query/value"
)

// helpTexts has a line for each public command: its name and what it does.
//
//go:embed help.txt
var helpTexts string

var helpByName = sync.OnceValue(func() map[string]string {
	out := map[string]string{}
	for line := range strings.Lines(helpTexts) {
		name, text, _ := strings.Cut(strings.TrimSpace(line), " ")
		out[name] = text
	}
	return out
})

// Help returns a command's help text.
func (s *Spec) Help() string {
	if text, ok := helpByName()[s.Name]; ok {
		return text
	}
	if s.Internal || strings.HasPrefix(s.Name, "_") {
		return "internal: nodes of a cluster send it to one another"
	}
	return ""
}

// wantsHelp reports whether a request asks for the command's help instead of running it. The remainder of the
// request need not be valid: err is the result of parsing it.
func wantsHelp(req *Request, err error) bool {
	return req.Help || err != nil && value.Lookup(req.Body, "help").Truthy()
}

func appendHelp(dst []byte, s *Spec) []byte {
	return value.Append(dst, "help", value.NewString("help for: "+s.Name+" "+s.Help()))
}
