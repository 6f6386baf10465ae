package querystats

import (
	"math/big"
	"math/bits"
	"time"

	"github.com/shoaldb/shoal/query/value"
)

// Metrics are the statistics of one execution: of the command that began it and of its getMores.
type Metrics struct {
	First, Total                                   time.Duration
	Returned, Keys, Docs                           int64
	SortStage, UsedDisk, MultiPlanner, FromPlanner bool // FromPlanner: from the plan cache
}

// figures sum up all executions of a key.
type figures struct {
	last                      time.Duration
	count                     int64
	total, response, working  aggregate
	returned, keys, docs      aggregate
	sort, disk, trial, cached int64 // number of executions with true
	first, latest             time.Time
}

func (f *figures) add(m *Metrics, now time.Time) {
	f.count++
	f.last, f.latest = m.Total, now
	f.total.add(m.Total.Microseconds())
	f.response.add(m.First.Microseconds())
	f.working.add(m.Total.Milliseconds())
	f.returned.add(m.Returned)
	f.keys.add(m.Keys)
	f.docs.add(m.Docs)
	for _, b := range []struct {
		said bool
		n    *int64
	}{{m.SortStage, &f.sort}, {m.UsedDisk, &f.disk}, {m.MultiPlanner, &f.trial}, {m.FromPlanner, &f.cached}} {
		if b.said {
			*b.n++
		}
	}
}

func (f *figures) doc() []byte {
	said := func(name string, n int64) value.Field {
		return value.F(name, value.NewDocument(value.Doc(value.F("true", value.NewInt64(n)), value.F("false", value.NewInt64(f.count-n)))))
	}
	return value.Doc(value.F("lastExecutionMicros", value.NewInt64(f.last.Microseconds())), value.F("execCount", value.NewInt64(f.count)),
		f.total.field("totalExecMicros"), f.response.field("firstResponseExecMicros"), f.returned.field("docsReturned"),
		f.keys.field("keysExamined"), f.docs.field("docsExamined"), f.working.field("workingTimeMillis"),
		said("hasSortStage", f.sort), said("usedDisk", f.disk), said("fromMultiPlanner", f.trial), said("fromPlanCache", f.cached),
		value.F("firstSeenTimestamp", value.NewTime(f.first)), value.F("latestSeenTimestamp", value.NewTime(f.latest)))
}

// aggregate is one figure over many executions. Its squares are summed in 128 bits.
type aggregate struct {
	sum, max, min int64
	high, low     uint64
	any           bool
}

func (a *aggregate) add(n int64) {
	if !a.any {
		a.max, a.min, a.any = n, n, true
	}
	a.sum += n
	a.max, a.min = max(a.max, n), min(a.min, n)
	high, low := bits.Mul64(uint64(n), uint64(n))
	var carry uint64
	a.low, carry = bits.Add64(a.low, low, 0)
	a.high, _ = bits.Add64(a.high, high, carry)
}

func (a *aggregate) field(name string) value.Field {
	return value.F(name, value.NewDocument(value.Doc(value.F("sum", value.NewInt64(a.sum)), value.F("max", value.NewInt64(a.max)),
		value.F("min", value.NewInt64(a.min)), value.F("sumOfSquares", a.squares()))))
}

// squares returns the sum of squares as a decimal; digits beyond the 34th are lost.
func (a *aggregate) squares() value.Value {
	n := new(big.Int).SetUint64(a.high)
	n.Or(n.Lsh(n, 64), new(big.Int).SetUint64(a.low))
	text := n.String()
	if digits := len(text); digits > 34 {
		text = text[:34] + "E" + big.NewInt(int64(digits-34)).String()
	}
	v, err := value.ParseDecimal128(text)
	if err != nil {
		return value.NewInt64(0) // unreachable for a string of digits
	}
	return v
}
