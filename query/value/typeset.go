package value

// TypeSet is a set of BSON types, the argument of $type and $jsonSchema's bsonType.
type TypeSet struct {
	mask   uint32 // bit t for types 1..19, bits 30 and 31 for MinKey and MaxKey
	Number bool   // "number" was specified: kept for printing
}

const (
	minKeyBit  = 30
	maxKeyBit  = 31
	numberMask = 1<<Double | 1<<Int32 | 1<<Int64 | 1<<Decimal128
)

func typeBit(t Type) uint32 {
	switch {
	case t == MinKey:
		return 1 << minKeyBit
	case t == MaxKey:
		return 1 << maxKeyBit
	case t >= Double && t <= Decimal128:
		return 1 << t
	}
	return 0
}

// Add adds a type to the set.
func (s *TypeSet) Add(t Type) { s.mask |= typeBit(t) }

// AddNumber adds all number types to the set.
func (s *TypeSet) AddNumber() { s.mask |= numberMask; s.Number = true }

// Has reports whether t is in the set.
func (s TypeSet) Has(t Type) bool { return s.mask&typeBit(t) != 0 }

// Empty reports whether nothing is in the set.
func (s TypeSet) Empty() bool { return s.mask == 0 }

// Types lists the set in ascending order of type numbers, MinKey first; the number types are omitted if they were
// specified as "number".
func (s TypeSet) Types() (out []Type) {
	rest := s.mask
	if s.Number {
		rest &^= numberMask
	}
	if s.Has(MinKey) {
		out = append(out, MinKey)
	}
	for t := Double; t <= Decimal128; t++ {
		if rest&(1<<t) != 0 {
			out = append(out, t)
		}
	}
	if s.Has(MaxKey) {
		out = append(out, MaxKey)
	}
	return out
}

var typesByName = map[string]Type{}

func init() {
	for t := Double; t <= Decimal128; t++ {
		typesByName[t.Name()] = t
	}
	typesByName["minKey"], typesByName["maxKey"] = MinKey, MaxKey
}

// TypeByName finds a type by its alias ("double", "objectId", …); "number" and "missing" are not types.
func TypeByName(name string) (Type, bool) {
	t, ok := typesByName[name]
	return t, ok
}

// TypeByNumber finds a type by its number in $type: -1 is MinKey.
func TypeByNumber(n int64) (Type, bool) {
	switch {
	case n == -1:
		return MinKey, true
	case n == 127:
		return MaxKey, true
	case n >= int64(Double) && n <= int64(Decimal128):
		return Type(n), true
	}
	return Missing, false
}
