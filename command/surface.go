package command

import (
	_ "embed"
	"strings"
)

// surface lists every command of the real server with the roles that know it: B both mongod and mongos, D mongod,
// S mongos, SD a shard's mongod, CS a config server. Those for tests have a second word, T.
//
//go:embed surface.txt
var surface string

// AddRest adds a row that replies NotImplemented, by name, for each command of the real server that the table lacks, to
// distinguish it from a command that does not exist. Commands of shards reply with the error of sharded as long as it
// returns one; nil stands for a process that has no commands of shards.
func (s *Service) AddRest(sharded func() error) {
	for line := range strings.Lines(surface) {
		name, on, _ := strings.Cut(strings.TrimSpace(line), " ")
		on, test := strings.CutSuffix(on, " T")
		if s.Table.Lookup(name) != nil || roleOf(on)&s.Role == 0 {
			continue
		}
		s.Table.Add(Spec{
			Name: name, Roles: roleOf(on), Lenient: true, ReadConcern: true, WriteConcern: true, ArgTypes: TAny, NotBuilt: true, TestOnly: test,
			Run: func(op *Op, dst []byte) ([]byte, error) {
				if on == "SD" && sharded != nil {
					if err := sharded(); err != nil {
						return dst, err
					}
				}
				return dst, NotImplemented("command %s", op.Req.Spec.Name)
			},
		})
	}
}

func roleOf(on string) Role {
	switch on {
	case "B":
		return All
	case "S":
		return Router
	case "CS":
		return Config
	}
	return Shard | Config
}
