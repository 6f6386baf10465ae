package cluster

import (
	"strings"
	"time"

	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// ReadMode determines which members of a set may serve a read.
type ReadMode uint8

// The modes, in the order of the manual's page "Read Preference".
const (
	ReadPrimary ReadMode = iota
	ReadPrimaryPreferred
	ReadSecondary
	ReadSecondaryPreferred
	ReadNearest
)

var readModes = []string{"primary", "primaryPreferred", "secondary", "secondaryPreferred", "nearest"}

// String returns the mode as drivers spell it.
func (m ReadMode) String() string { return readModes[m] }

// Tag is one label of a member.
type Tag struct{ Name, Value string }

// ReadPreference is a parsed $readPreference. A nil one means the primary.
type ReadPreference struct {
	Mode ReadMode
	// TagSets are tried in order; the first that any member matches applies. None, or an empty set, matches every member.
	TagSets [][]Tag
	// MaxStalenessSeconds limits the estimated lag of a secondary; 0 for no limit.
	MaxStalenessSeconds int64
	// TryNext is the time after which another member than the chosen one is tried; 0 for no limit but that of the
	// call.
	TryNext time.Duration

	doc []byte
}

// MinMaxStaleness is smallestMaxStalenessSeconds of the drivers' specification "Max Staleness".
const MinMaxStaleness = 90

// Nearest prefers the member with the lowest latency.
var Nearest = &ReadPreference{Mode: ReadNearest}

// ParseReadPreference reads a $readPreference document. Hedge is accepted and has no effect, as documented since 8.0.
func ParseReadPreference(doc []byte) (*ReadPreference, error) {
	p := &ReadPreference{doc: doc}
	mode := value.Lookup(doc, "mode")
	switch {
	case mode.IsNullish():
		return nil, mongoerr.MissingField("$readPreference.mode")
	case mode.T != value.String:
		return nil, mongoerr.Newf(mongoerr.TypeMismatch, "BSON field '$readPreference.mode' is the wrong type '%s', expected type 'string'", mode.T.Name())
	}
	if err := p.parseMode(mode.Str()); err != nil {
		return nil, err
	}
	if err := p.parseTags(value.Lookup(doc, "tags")); err != nil {
		return nil, err
	}
	if err := p.parseStaleness(value.Lookup(doc, "maxStalenessSeconds")); err != nil {
		return nil, err
	}
	hedge := value.Lookup(doc, "hedge")
	if hedge.T == value.Document && p.Mode == ReadPrimary && !isFalse(value.Lookup(hedge.Doc(), "enabled")) {
		return nil, mongoerr.New(mongoerr.InvalidOptions, "cannot enable hedging for readPreference mode primary")
	}
	return p, nil
}

func isFalse(v value.Value) bool { return v.T == value.Boolean && !v.Truthy() }

func (p *ReadPreference) parseMode(name string) error {
	for i, m := range readModes {
		if m == name {
			p.Mode = ReadMode(i)
			return nil
		}
	}
	return mongoerr.Newf(mongoerr.BadValue, "Enumeration value '%s' for field '$readPreference.mode' is not a valid value.", name)
}

func (p *ReadPreference) parseTags(v value.Value) error {
	if v.IsNullish() {
		return nil
	}
	if v.T != value.Array {
		return mongoerr.Newf(mongoerr.TypeMismatch, "BSON field '$readPreference.tags' is the wrong type '%s', expected type 'array'", v.T.Name())
	}
	restricts := false
	for _, set := range value.Values(v.Doc()) {
		if set.T != value.Document {
			return mongoerr.Newf(mongoerr.TypeMismatch, "BSON field '$readPreference.tags.0' is the wrong type '%s', expected type 'object'", set.T.Name())
		}
		tags, err := ParseTags(set.Doc())
		if err != nil {
			return err
		}
		restricts = restricts || len(tags) > 0
		p.TagSets = append(p.TagSets, tags)
	}
	if restricts && p.Mode == ReadPrimary {
		return mongoerr.New(mongoerr.BadValue, "Only empty tags are allowed with primary read preference")
	}
	return nil
}

// ParseTags reads a document of tags: of a set of a read preference, or of a member.
func ParseTags(doc []byte) ([]Tag, error) {
	var out []Tag
	for name, v := range value.Elements(doc) {
		if v.T != value.String {
			return nil, mongoerr.Newf(mongoerr.TypeMismatch, "tag %s is not a string", name)
		}
		out = append(out, Tag{name, v.Str()})
	}
	return out, nil
}

func (p *ReadPreference) parseStaleness(v value.Value) error {
	if v.IsNullish() {
		return nil
	}
	if !v.T.Numeric() {
		return mongoerr.Newf(mongoerr.TypeMismatch, "BSON field '$readPreference.maxStalenessSeconds' is the wrong type '%s', expected types '[long, int, decimal, double]'", v.T.Name())
	}
	n := v.AsFloat64()
	switch {
	case n == 0 || n == -1: // drivers spell "no limit" as -1
		return nil
	case n < 0:
		return mongoerr.New(mongoerr.BadValue, "$readPreference.maxStalenessSeconds must be a non-negative integer")
	case n > 1<<31/1000:
		return mongoerr.Newf(mongoerr.BadValue, "$readPreference.maxStalenessSeconds value can not exceed %d", 1<<31/1000)
	case p.Mode == ReadPrimary:
		return mongoerr.New(mongoerr.BadValue, "$readPreference.maxStalenessSeconds can not be set for the primary mode")
	case n < MinMaxStaleness:
		return mongoerr.Newf(mongoerr.MaxStalenessOutOfRange, "Parameter maxStalenessSeconds cannot be less than %d", MinMaxStaleness)
	}
	p.MaxStalenessSeconds = int64(n)
	return nil
}

// OrPrimary returns the mode of a preference that may be nil.
func (p *ReadPreference) OrPrimary() ReadMode {
	if p == nil {
		return ReadPrimary
	}
	return p.Mode
}

// Clone returns a copy that holds nothing of the request's memory.
func (p *ReadPreference) Clone() *ReadPreference {
	if p == nil {
		return nil
	}
	c := *p
	c.doc = append([]byte(nil), p.doc...)
	return &c
}

// Doc returns the preference in the form of a command's field.
func (p *ReadPreference) Doc() []byte {
	if p != nil && len(p.doc) > 0 {
		return p.doc
	}
	return value.Doc(value.F("mode", value.NewString(p.OrPrimary().String())))
}

// NoHostMatches is the error of a call to a set in which no member can be reached that p (nil for the primary) allows.
func NoHostMatches(p *ReadPreference, set string) error {
	return mongoerr.Newf(mongoerr.FailedToSatisfyReadPreference, "Could not find host matching read preference %s for set %s", p, set)
}

// String returns the preference in the form used in errors.
func (p *ReadPreference) String() string {
	var b strings.Builder
	b.WriteString(`{ mode: "` + p.OrPrimary().String() + `"`)
	if p != nil && len(p.TagSets) > 0 && p.Mode != ReadPrimary {
		b.WriteString(", tags: " + value.Show(value.Lookup(p.Doc(), "tags")))
	}
	if p != nil && p.MaxStalenessSeconds > 0 {
		b.WriteString(", maxStalenessSeconds: " + value.Show(value.NewInt64(p.MaxStalenessSeconds)))
	}
	return b.String() + " }"
}
