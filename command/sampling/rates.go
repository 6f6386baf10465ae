package sampling

import (
	"sync"
	"time"

	"github.com/shoaldb/shoal/query/value"
)

// Rates divides the configured rates among the samplers, in proportion to the queries that they report. The primary that stores the
// configurations keeps it in memory, so a new primary starts with an empty one.
type Rates struct {
	mu       sync.Mutex
	samplers map[string]report
}

type report struct {
	queries float64
	at      time.Time
}

// Share records a sampler's report, and returns its share of every rate. A sampler that has not reported for the given time has no
// share.
func (r *Rates) Share(name string, queries float64, now time.Time, timeout time.Duration) float64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.samplers == nil {
		r.samplers = map[string]report{}
	}
	r.samplers[name] = report{queries, now}
	total := 0.0
	for other, s := range r.samplers {
		if now.Sub(s.at) > timeout {
			delete(r.samplers, other)
			continue
		}
		total += s.queries
	}
	if total == 0 {
		return 1 / float64(len(r.samplers))
	}
	return queries / total
}

// ParseConfigurations reads the documents of a reply.
func ParseConfigurations(docs [][]byte) (out []Configuration) {
	for _, d := range docs {
		c := Configuration{NS: value.Lookup(d, "ns").Str(), UUID: value.Lookup(d, "collectionUuid").Clone(), Rate: value.Lookup(d, "samplesPerSecond").AsFloat64()}
		c.Started = value.Lookup(d, "startTime").Time()
		out = append(out, c)
	}
	return out
}

// Doc returns a stored configuration in the form for a sampler with the given share of the rate.
func Doc(stored []byte, share float64) []byte {
	return value.Doc(value.F("ns", value.Lookup(stored, "_id")), value.F("collectionUuid", value.Lookup(stored, "collUuid")),
		value.F("samplesPerSecond", value.NewDouble(value.Lookup(stored, "samplesPerSecond").AsFloat64()*share)), value.F("startTime", value.Lookup(stored, "startTime")))
}
