package lock

import "github.com/shoaldb/shoal/query/value"

// Doc counts acquisitions and waits by kind of resource and mode, as serverStatus and the profiler show them.
func (s Stats) Doc() []byte {
	long := func(name string, v int64) value.Field { return value.F(name, value.NewInt64(v)) }
	sub := func(name string, f []value.Field) value.Field {
		return value.F(name, value.NewDocument(value.Doc(f...)))
	}
	out, m := value.Begin(nil)
	for _, k := range Kinds() {
		var acquires, waits, micros []value.Field
		for _, mode := range []Mode{IS, IX, S, X} {
			c := s[k][mode]
			if c.Acquires == 0 {
				continue
			}
			acquires = append(acquires, long(mode.Letter(), int64(c.Acquires)))
			if c.Waits > 0 {
				waits = append(waits, long(mode.Letter(), int64(c.Waits)))
				micros = append(micros, long(mode.Letter(), int64(c.WaitMicros)))
			}
		}
		if acquires == nil {
			continue
		}
		fields := []value.Field{sub("acquireCount", acquires)}
		if waits != nil {
			fields = append(fields, sub("acquireWaitCount", waits), sub("timeAcquiringMicros", micros))
		}
		out = value.Append(out, k.String(), value.NewDocument(value.Doc(fields...)))
	}
	return value.End(out, m)
}
