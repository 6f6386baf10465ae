package command

import (
	"bytes"
	"time"

	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/replication"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// concerns holds the concerns of a request.
type concerns struct {
	read  ReadConcern
	write WriteConcern
}

// AskedConcern returns the write concern that the command waits for: its own, or the default one.
func (r *Request) AskedConcern() WriteConcern {
	if r.WriteConcern == nil {
		return defaultConcern
	}
	return *r.WriteConcern
}

var defaultConcern = WriteConcern{Majority: true}

// WriteConcern is a parsed write concern. W is a number of members or, with Majority, "majority"; Tag names a custom mode.
type WriteConcern struct {
	W        int
	Majority bool
	Tag      string
	Named    bool // w is a string other than "majority": Tag, which may be empty, names a mode of the set
	Tags     bool // w is a document of tags, which is not supported: no member has tags
	J        bool
	JSet     bool
	Timeout  time.Duration
	Given    bool
	Doc      []byte // as sent
}

// ParseWriteConcern reads a writeConcern document; nil is the default, majority.
func ParseWriteConcern(doc []byte) (WriteConcern, error) {
	wc := defaultConcern
	wc.Doc = doc
	if doc == nil {
		return wc, nil
	}
	for it := value.Walk(doc); ; {
		k, v, ok := it.Next()
		if !ok {
			return wc, nil
		}
		wc.Given = true
		switch string(k) {
		case "w":
			if err := wc.setW(v); err != nil {
				return wc, err
			}
		case "j":
			if v.T != value.Boolean && !v.T.Numeric() && v.T != value.Null {
				return wc, wrongType("writeConcern.j", v.T, TSafeBool)
			}
			wc.J, wc.JSet = v.Truthy(), true
		case "wtimeout":
			ms, err := wtimeout(v)
			if err != nil {
				return wc, err
			}
			wc.Timeout = ms
		case "fsync":
			if v.T != value.Boolean && !v.T.Numeric() && v.T != value.Null {
				return wc, wrongType("writeConcern.fsync", v.T, TSafeBool)
			}
			if v.Truthy() {
				wc.J, wc.JSet = true, true
			}
		case "provenance":
			if err := checkProvenance("writeConcern", v); err != nil {
				return wc, err
			}
		case "getLastError":
		default:
			return wc, UnknownField("writeConcern." + string(k))
		}
	}
}

// doc returns the write concern as it is shown in errors.
func (wc *WriteConcern) doc() []byte {
	w, provenance := value.NewInt32(int32(wc.W)), "clientSupplied"
	switch {
	case wc.Majority:
		w = value.NewString("majority")
	case wc.Named:
		w = value.NewString(wc.Tag)
	}
	if !wc.Given {
		provenance = "implicitDefault"
	}
	f := []value.Field{value.F("w", w)}
	if wc.JSet {
		f = append(f, value.F("j", value.NewBool(wc.J)))
	}
	return value.Doc(append(f, value.F("wtimeout", value.NewInt32(int32(wc.Timeout/time.Millisecond))), value.F("provenance", value.NewString(provenance)))...)
}

func wtimeout(v value.Value) (time.Duration, error) {
	if !v.T.Numeric() {
		if v.T == value.Null {
			return 0, nil
		}
		return 0, nil // the real server ignores a wtimeout of another type
	}
	ms, ok := v.AsInt64()
	if !ok {
		ms = value.SafeInt64(value.NewDouble(v.AsFloat64()))
	}
	if ms > 1<<31-1 {
		return 0, mongoerr.New(mongoerr.FailedToParse, "wtimeout must be a number representable as int32")
	}
	if ms < 0 {
		ms = 0
	}
	return time.Duration(ms) * time.Millisecond, nil
}

func (wc *WriteConcern) setW(v value.Value) error {
	wc.Majority = false
	switch {
	case v.T.Numeric():
		n := value.SafeInt64(v)
		if n < 0 || n > 50 || v.IsNaN() {
			return mongoerr.New(mongoerr.FailedToParse, "w has to be a non-negative number and not greater than 50")
		}
		wc.W = int(n)
	case v.T == value.String:
		if v.Str() == "majority" {
			wc.Majority = true
		} else {
			wc.Tag, wc.Named = v.Str(), true
		}
	case v.T == value.Document:
		for k, n := range value.Elements(v.Doc()) {
			if !n.T.Numeric() {
				return mongoerr.Newf(mongoerr.FailedToParse, "tags must be a single level document with only number values, found %s", k)
			}
			wc.Tags = true
		}
		if !wc.Tags {
			return mongoerr.New(mongoerr.FailedToParse, "tagged write concern requires tags")
		}
	case v.T == value.Null:
		wc.Named = true // as an empty string
	default:
		return mongoerr.New(mongoerr.FailedToParse, "w has to be a number, string, or object")
	}
	return nil
}

// Durable reports whether an acknowledgement has to wait for the journal: with j: true, and with w: majority in any
// case, since writeConcernMajorityJournalDefault is true.
func (wc WriteConcern) Durable() bool {
	if wc.JSet {
		return wc.J || wc.Majority
	}
	return wc.Majority
}

// ForSet returns the concern in the form that replication takes.
func (wc WriteConcern) ForSet() replication.WriteConcern {
	r := replication.WriteConcern{W: wc.W, Tag: wc.Tag, J: wc.Durable(), Timeout: wc.Timeout}
	if wc.Majority {
		r.W = -1
	}
	return r
}

// Unacknowledged reports whether the concern is w: 0.
func (wc WriteConcern) Unacknowledged() bool {
	return !wc.Majority && !wc.Named && wc.W == 0 && !wc.J
}

// ReadConcern is a parsed read concern.
type ReadConcern struct {
	Level            string
	AfterClusterTime uint64
	AtClusterTime    uint64
	Given            bool   // a level was sent
	ByDefault        bool   // whether it is the cluster's default, not the client's
	Doc              []byte // as sent
}

// Is reports whether a read concern has a level; nil has none.
func (rc *ReadConcern) Is(level string) bool { return rc != nil && rc.Level == level }

// AsSent returns the document that a read concern was parsed from, nil for none.
func (rc *ReadConcern) AsSent() []byte {
	if rc == nil {
		return nil
	}
	return rc.Doc
}

// Clone copies what a read concern borrows from its request.
func (rc *ReadConcern) Clone() *ReadConcern {
	if rc == nil {
		return nil
	}
	c := *rc
	c.Doc = bytes.Clone(rc.Doc)
	return &c
}

// ParseReadConcern reads a readConcern document; nil is the default, local.
func ParseReadConcern(doc []byte) (ReadConcern, error) {
	rc := ReadConcern{Doc: doc}
	for it := value.Walk(doc); ; {
		k, v, ok := it.Next()
		if !ok {
			return rc, rc.check()
		}
		switch string(k) {
		case "level":
			if v.T == value.Null {
				continue
			}
			if v.T != value.String {
				return rc, wrongType("readConcern.level", v.T, TString)
			}
			if rc.Level = v.Str(); rc.Level == "" {
				return rc, rc.badLevel()
			}
			rc.Given = true
		case "afterClusterTime":
			if v.T != value.Timestamp {
				return rc, mongoerr.Newf(mongoerr.TypeMismatch, "BSON field 'readConcern.afterClusterTime' is the wrong type '%s', expected type 'timestamp'", v.T.Name())
			}
			rc.AfterClusterTime = v.TimestampU64()
			if rc.AfterClusterTime>>32 == 0 {
				return rc, mongoerr.New(mongoerr.InvalidOptions, "afterClusterTime cannot be a null timestamp")
			}
		case "atClusterTime":
			if v.T != value.Timestamp {
				return rc, mongoerr.Newf(mongoerr.TypeMismatch, "BSON field 'readConcern.atClusterTime' is the wrong type '%s', expected type 'timestamp'", v.T.Name())
			}
			rc.AtClusterTime = v.TimestampU64()
			if rc.AtClusterTime>>32 == 0 {
				return rc, mongoerr.New(mongoerr.InvalidOptions, "atClusterTime cannot be a null timestamp")
			}
		case "provenance":
			if err := checkProvenance("readConcern", v); err != nil {
				return rc, err
			}
		case "afterOpTime", "$allowTransactionTableSnapshot", "$waitLastStableRecoveryTimestamp":
		default:
			return rc, UnknownField("readConcern." + string(k))
		}
	}
}

func (rc ReadConcern) check() error {
	switch rc.Level {
	case "", "local", "available", "majority", "linearizable", "snapshot":
	default:
		return rc.badLevel()
	}
	if rc.AtClusterTime != 0 && rc.Level != "snapshot" {
		return mongoerr.New(mongoerr.InvalidOptions, "atClusterTime field can be set only if level is equal to snapshot")
	}
	if rc.AfterClusterTime != 0 && (rc.Level == "available" || rc.Level == "linearizable") {
		return mongoerr.New(mongoerr.InvalidOptions, "afterClusterTime field can be set only if level is equal to local, majority, or snapshot")
	}
	if rc.AfterClusterTime != 0 && rc.AtClusterTime != 0 {
		return mongoerr.New(mongoerr.InvalidOptions, "Can not specify both atClusterTime and afterClusterTime in readConcern")
	}
	return nil
}

func (rc ReadConcern) badLevel() error {
	return mongoerr.Newf(mongoerr.BadValue, "Enumeration value '%s' for field 'readConcern.level' is not a valid value.", rc.Level)
}

func checkProvenance(concern string, v value.Value) error {
	switch {
	case v.T == value.Null:
		return nil
	case v.T != value.String:
		return wrongType(concern+".provenance", v.T, TString)
	}
	switch v.Str() {
	case "clientSupplied", "implicitDefault", "customDefault", "getLastErrorDefaults", "internalWriteDefault":
		return nil
	}
	return mongoerr.Newf(mongoerr.BadValue, "Enumeration value '%s' for field '%s.provenance' is not a valid value.", v.Str(), concern)
}

// snapshotReads are the commands that may read from a snapshot outside a transaction.
var snapshotReads = map[string]bool{"find": true, "aggregate": true, "distinct": true}

// malformed are the errors of parsing a request's concerns.
type malformed struct{ read, write error }

// parseConcerns parses the request's concerns before anything else reads the request. Its errors are reported
// by checkConcerns, after other errors of the request.
func (r *Request) parseConcerns() (bad malformed) {
	if c := &r.concerns; r.ReadConcern == &c.read { // not that of an enclosing command
		c.read, bad.read = ParseReadConcern(c.read.Doc)
	}
	if c := &r.concerns; r.WriteConcern != nil {
		c.write, bad.write = ParseWriteConcern(c.write.Doc)
	}
	return bad
}

// checkConcerns refuses malformed concerns, and those on commands that cannot honour them.
func checkConcerns(req *Request, bad malformed) error {
	if bad.read != nil {
		return bad.read
	}
	if req.ReadConcern != nil {
		if err := checkReadConcern(req, req.ReadConcern); err != nil {
			return err
		}
	}
	if req.WriteConcern != nil && !req.Spec.WriteConcern {
		return mongoerr.New(mongoerr.InvalidOptions, "Command "+req.Spec.Name+" does not support writeConcern")
	}
	return bad.write
}

func checkReadConcern(req *Request, rc *ReadConcern) error {
	if rc.Level == "snapshot" && req.Spec.Name == "getMore" {
		return nil // drivers send it with all commands of a snapshot session; the cursor has its snapshot
	}
	if rc.Given && rc.Level != "local" && !req.Spec.ReadConcern {
		return mongoerr.Newf(mongoerr.InvalidOptions, "Command %s does not support read concern { level: \"%s\" }", req.Spec.Name, rc.Level)
	}
	if !req.Autocommit.IsMissing() {
		return checkTxnReadConcern(rc)
	}
	if rc.Level == "snapshot" && !snapshotReads[req.Spec.Name] && !req.Spec.Internal {
		return mongoerr.Newf(mongoerr.InvalidOptions, "Command %s does not support { readConcern: { level: \"snapshot\", provenance: \"clientSupplied\" } }"+
			" :: caused by :: read concern snapshot not supported", req.Spec.Name)
	}
	return nil
}

// checkTxnReadConcern refuses the levels that a multi-document transaction cannot read at.
func checkTxnReadConcern(rc *ReadConcern) error {
	switch rc.Level {
	case "", "local", "majority", "snapshot":
		return nil
	}
	return mongoerr.New(mongoerr.InvalidOptions, "The readConcern level must be either 'local' (default), 'majority' or 'snapshot' in order to run in a transaction")
}
