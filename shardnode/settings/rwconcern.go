package settings

import (
	"sync"
	"sync/atomic"

	"github.com/shoaldb/shoal/command"
	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// rwDefaults holds the cluster-wide default read and write concern, which is stored in config.settings.
type rwDefaults struct {
	mu  sync.Mutex // serialises setDefaultRWConcern
	cur atomic.Pointer[rwDefault]
}

// rwDefault is one state of the defaults; nil documents are not set.
type rwDefault struct {
	read, write []byte // as stored; nil for none

	readConcern  command.ReadConcern
	writeConcern command.WriteConcern

	opTime   value.Value
	wallTime value.Value
	loaded   value.Value // when this node loaded it
}

const settingsNS = "config.settings"

var rwDefaultsID = value.NewString("ReadWriteConcernDefaults")

func (st *Settings) rwConcernSpecs() []command.Spec {
	set := command.AdminOnly("setDefaultRWConcern", st.runSetDefaultRWConcern,
		command.Opt("defaultReadConcern", command.TObject), command.Opt("defaultWriteConcern", command.TObject))
	set.WriteConcern = true
	return []command.Spec{
		command.AdminOnly("getDefaultRWConcern", st.runGetDefaultRWConcern, command.Opt("inMemory", command.TBool)), set,
	}
}

func (d *rwDefaults) load(st *Settings) error {
	doc, err := st.Docs.Get(settingsNS, rwDefaultsID)
	if err != nil {
		return err
	}
	d.keep(st, doc)
	return nil
}

// keep applies a stored document; nil means that there are no defaults.
func (d *rwDefaults) keep(st *Settings, doc []byte) {
	cur := &rwDefault{loaded: value.NewTime(st.Now())}
	if v := value.Lookup(doc, "defaultReadConcern"); v.T == value.Document {
		cur.read = v.Doc()
		cur.readConcern, _ = command.ParseReadConcern(cur.read) // checked when it was set
		cur.readConcern.ByDefault = true
	}
	if v := value.Lookup(doc, "defaultWriteConcern"); v.T == value.Document {
		cur.write = v.Doc()
		cur.writeConcern, _ = command.ParseWriteConcern(cur.write)
	}
	cur.opTime, cur.wallTime = value.Lookup(doc, "updateOpTime"), value.Lookup(doc, "updateWallClockTime")
	d.cur.Store(cur)
}

// apply applies the defaults to a client's operation without concerns of its own.
func (d *rwDefaults) apply(op *command.Op) {
	cur := d.cur.Load()
	if cur == nil || op.Client.InProcess || op.Client.Internal {
		return
	}
	// In a transaction the read concern is that of its first statement, the write concern that of its commit or abort.
	inTxn := op.InTransaction()
	if cur.write != nil && op.Req.WriteConcern == nil && op.Req.Spec.WriteConcern && (!inTxn || op.EndsTransaction()) {
		op.Req.WriteConcern = &cur.writeConcern
	}
	if cur.read != nil && (!inTxn || op.Req.StartTxn) && op.Req.ReadConcern == nil && op.Req.Spec.ReadConcern && op.Req.Spec.Kind == command.Read {
		op.Req.ReadConcern = &cur.readConcern
	}
}

func (st *Settings) runGetDefaultRWConcern(op *command.Op, dst []byte) ([]byte, error) {
	if err := st.needSet(op, "getDefaultRWConcern"); err != nil {
		return dst, err
	}
	if op.Bool("inMemory") {
		return value.Append(st.rw.append(dst), "inMemory", value.NewBool(true)), nil
	}
	if err := st.rw.load(st); err != nil {
		return dst, err
	}
	return st.rw.append(dst), nil
}

// append appends the defaults as getDefaultRWConcern and setDefaultRWConcern return them.
func (d *rwDefaults) append(dst []byte) []byte {
	cur := d.cur.Load()
	read, readSource := value.Doc(value.F("level", value.NewString("local"))), "implicit"
	if cur.read != nil {
		read, readSource = cur.read, "global"
	}
	write, writeSource := value.Doc(value.F("w", value.NewString("majority")), value.F("wtimeout", value.NewInt32(0))), "implicit"
	if cur.write != nil {
		write, writeSource = cur.write, "global"
	}
	dst = value.Append(dst, "defaultReadConcern", value.NewDocument(read))
	dst = value.Append(dst, "defaultWriteConcern", value.NewDocument(write))
	if !cur.opTime.IsMissing() {
		dst = value.Append(dst, "updateOpTime", cur.opTime)
		dst = value.Append(dst, "updateWallClockTime", cur.wallTime)
	}
	dst = value.Append(dst, "defaultWriteConcernSource", value.NewString(writeSource))
	dst = value.Append(dst, "defaultReadConcernSource", value.NewString(readSource))
	return value.Append(dst, "localUpdateWallClockTime", cur.loaded)
}

func (st *Settings) runSetDefaultRWConcern(op *command.Op, dst []byte) ([]byte, error) {
	if err := st.needSet(op, "setDefaultRWConcern"); err != nil {
		return dst, err
	}
	if err := st.checkWriteConcern(op); err != nil {
		return dst, err
	}
	read, write := op.Arg("defaultReadConcern"), op.Arg("defaultWriteConcern")
	if read.IsMissing() && write.IsMissing() {
		return dst, mongoerr.New(mongoerr.BadValue, "At least one of the \"defaultReadConcern\" or \"defaultWriteConcern\" fields must be present")
	}
	d := &st.rw
	d.mu.Lock()
	defer d.mu.Unlock()
	cur := *d.cur.Load()
	if !read.IsMissing() {
		if err := checkDefaultRead(read.Doc()); err != nil {
			return dst, err
		}
		cur.read = nil
		if len(read.Doc()) > 5 {
			cur.read = read.Doc()
		}
	}
	if !write.IsMissing() {
		w, err := st.defaultWrite(write.Doc())
		if err != nil {
			return dst, err
		}
		if w == nil && cur.write != nil {
			return dst, mongoerr.New(mongoerr.IllegalOperation, "The global default write concern cannot be unset once it is set.")
		}
		cur.write = w
	}
	doc := st.rwDocument(&cur)
	if err := st.Docs.Put(op, settingsNS, doc); err != nil {
		return dst, err
	}
	d.keep(st, doc)
	return d.append(dst), nil
}

// checkWriteConcern refuses a command's own write concern if it names a mode that the set does not have.
func (st *Settings) checkWriteConcern(op *command.Op) error {
	if wc := op.Req.AskedConcern(); wc.Named {
		return unknownMode(wc.Tag)
	}
	return nil
}

func unknownMode(tag string) error {
	return mongoerr.Newf(mongoerr.UnknownReplWriteConcern, "No write concern mode named '%s' found in replica set configuration", tag)
}

func (st *Settings) rwDocument(cur *rwDefault) []byte {
	fields := []value.Field{value.F("_id", rwDefaultsID)}
	if cur.read != nil {
		fields = append(fields, value.F("defaultReadConcern", value.NewDocument(cur.read)))
	}
	if cur.write != nil {
		fields = append(fields, value.F("defaultWriteConcern", value.NewDocument(cur.write)))
	}
	fields = append(fields, value.F("updateOpTime", st.Engine.Visible().Value()), value.F("updateWallClockTime", value.NewTime(st.Now())))
	return value.Doc(fields...)
}

func checkDefaultRead(doc []byte) error {
	rc, err := command.ParseReadConcern(doc)
	if err != nil {
		return err
	}
	switch rc.Level {
	case "", "local", "available", "majority":
	default:
		return mongoerr.Newf(mongoerr.BadValue, "level: '%s' is not suitable for the default read concern", rc.Level)
	}
	if rc.AfterClusterTime != 0 || rc.AtClusterTime != 0 {
		return mongoerr.New(mongoerr.BadValue, "a default read concern can contain only a level")
	}
	return nil
}

// defaultWrite checks a default write concern and returns the form that is stored; nil for an empty one, which unsets it.
func (st *Settings) defaultWrite(doc []byte) ([]byte, error) {
	if len(doc) <= 5 {
		return nil, nil
	}
	wc, err := command.ParseWriteConcern(doc)
	if err != nil {
		return nil, err
	}
	w := value.Lookup(doc, "w")
	if w.IsMissing() {
		return nil, mongoerr.New(mongoerr.BadValue, "Default write concern must have 'w' field.")
	}
	if wc.Named {
		return nil, unknownMode(wc.Tag)
	}
	if !wc.Majority && wc.W == 0 {
		return nil, mongoerr.New(mongoerr.BadValue, "Default write concern 'w' value must be greater than 0")
	}
	if w.T.Numeric() {
		w = value.NewInt32(int32(wc.W))
	}
	fields := []value.Field{value.F("w", w)}
	if wc.JSet {
		fields = append(fields, value.F("j", value.NewBool(wc.J)))
	}
	return value.Doc(append(fields, value.F("wtimeout", value.NewInt32(int32(wc.Timeout.Milliseconds()))))...), nil
}
