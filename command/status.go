package command

import (
	"os"
	"runtime"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/wire"
)

// StatusSection is one section of serverStatus.
type StatusSection struct {
	Name string
	// OnDemand means that the section is shown only if the command names it.
	OnDemand bool
	// Doc returns the section, nil if there is nothing to report; arg is the command's value for it.
	Doc func(op *Op, arg value.Value) []byte
}

// Status assembles serverStatus: the sections common to all roles, and those that a role adds.
type Status struct {
	Process  string // "mongod" or "mongos"
	Host     string
	Sections []StatusSection

	asserts  struct{ regular, warning, msg, user, tripwire, rollovers atomic.Int64 }
	lat      [3]latency
	network  atomic.Pointer[func() wire.Stats]
	security atomic.Pointer[func() []value.Field]
	hellos   helloStats
}

type latency struct{ micros, ops atomic.Int64 }

// The kinds of opLatencies.
const (
	latReads = iota
	latWrites
	latCommands
)

// helloStats counts the connections to which hello is streamed, by the spelling used, and the hellos that wait for a change.
type helloStats struct{ hello, isMaster, awaiting atomic.Int64 }

// streaming returns the counter of the connections to which a command is streamed; nil if it is not a hello.
func (h *helloStats) streaming(name string) *atomic.Int64 {
	switch name {
	case "hello":
		return &h.hello
	case "isMaster", "ismaster":
		return &h.isMaster
	}
	return nil
}

// SetNetwork sets the source of the statistics of the service's sockets.
func (s *Status) SetNetwork(f func() wire.Stats) { s.network.Store(&f) }

// SetSecurity sets the source of the certificate fields of the section security.
func (s *Status) SetSecurity(f func() []value.Field) { s.security.Store(&f) }

// Network returns the statistics of the service's sockets; zeros if it has none.
func (s *Status) Network() wire.Stats {
	if f := s.network.Load(); f != nil {
		return (*f)()
	}
	return wire.Stats{}
}

// Add adds sections, in the order they are shown. A second section of one name replaces the first.
func (s *Status) Add(sections ...StatusSection) {
	for _, n := range sections {
		replaced := false
		for i := range s.Sections {
			if s.Sections[i].Name == n.Name {
				s.Sections[i], replaced = n, true
			}
		}
		if !replaced {
			s.Sections = append(s.Sections, n)
		}
	}
}

// note counts an operation that has ended.
func (s *Status) note(op *Op, err error) {
	if err != nil {
		s.asserts.user.Add(1)
	}
	kind := latCommands
	if op.Req.Spec != nil {
		switch op.Req.Spec.Kind {
		case Read:
			kind = latReads
		case Write:
			kind = latWrites
		}
	}
	s.lat[kind].micros.Add(op.Worked().Microseconds())
	s.lat[kind].ops.Add(1)
}

// statusSpec returns the row of serverStatus.
func (s *Service) statusSpec() Spec {
	return Spec{Name: "serverStatus", Roles: All, Lenient: true, Run: s.runServerStatus}
}

func (s *Service) runServerStatus(op *Op, dst []byte) ([]byte, error) {
	st := &s.Status
	up := time.Since(s.Started)
	dst = value.Append(dst, "host", value.NewString(st.Host))
	dst = value.Append(dst, "version", value.NewString(Version))
	dst = value.Append(dst, "process", value.NewString(st.Process))
	dst, m := value.BeginKey(dst, value.Array, "service")
	role := "shard"
	if s.Role == Router {
		role = "router"
	}
	dst = value.AppendIndex(dst, 0, value.NewString(role))
	dst = value.End(dst, m)
	dst = value.Append(dst, "pid", value.NewInt64(int64(os.Getpid())))
	dst = value.Append(dst, "uptime", value.NewDouble(float64(int64(up.Seconds()))))
	dst = value.Append(dst, "uptimeMillis", value.NewInt64(up.Milliseconds()))
	dst = value.Append(dst, "uptimeEstimate", value.NewInt64(int64(up.Seconds())))
	dst = value.Append(dst, "localTime", value.NewTime(time.Now()))
	all, none := value.Lookup(op.Req.Body, "all"), value.Lookup(op.Req.Body, "none")
	for i := range st.Sections {
		sec := &st.Sections[i]
		arg := value.Lookup(op.Req.Body, sec.Name)
		show := !sec.OnDemand && !none.Truthy() || sec.OnDemand && all.Truthy()
		if !arg.IsMissing() {
			show = arg.Truthy() || arg.T == value.Document
		}
		if !show {
			continue
		}
		if doc := sec.Doc(op, arg); doc != nil {
			dst = value.Append(dst, sec.Name, value.NewDocument(doc))
		}
	}
	return dst, nil
}

// i64 returns a short constructor for the sections' figures.
func i64(name string, n int64) value.Field { return value.F(name, value.NewInt64(n)) }

// subDoc returns a field whose value is a document of fields.
func subDoc(name string, fields ...value.Field) value.Field {
	return value.F(name, value.NewDocument(value.Doc(fields...)))
}

// addGenericStatus adds the sections that every role has.
func (s *Service) addGenericStatus() {
	plain := func(name string, f func() []byte) StatusSection {
		return StatusSection{Name: name, Doc: func(*Op, value.Value) []byte { return f() }}
	}
	s.Status.Add(
		plain("asserts", s.Status.assertsDoc),
		plain("connections", s.Status.connectionsDoc),
		plain("extra_info", extraInfo),
		plain("network", s.Status.networkDoc),
		plain("queues", s.Status.queuesDoc),
		plain("opLatencies", s.Status.latenciesDoc),
		plain("security", func() []byte {
			if a := s.Access; a != nil {
				return s.Status.securityDoc(a.counts.doc(a.enabled))
			}
			return s.Status.securityDoc()
		}),
		plain("tcmalloc", goMemory),
		plain("transportSecurity", func() []byte {
			var fields []value.Field
			for i, n := range s.Status.Network().Handshakes {
				fields = append(fields, i64(wire.TLSVersions[i], n))
			}
			return value.Doc(fields...)
		}),
		StatusSection{Name: "mirroredReads", OnDemand: true, Doc: func(*Op, value.Value) []byte {
			return value.Doc(i64("seen", 0), i64("sent", 0), i64("erroredDuringSend", 0), i64("processedAsSecondary", 0))
		}},
	)
}

func (s *Status) assertsDoc() []byte {
	a := &s.asserts
	i := func(n string, v int64) value.Field { return value.F(n, value.NewInt32(int32(v))) }
	return value.Doc(i("regular", a.regular.Load()), i("warning", a.warning.Load()), i("msg", a.msg.Load()), i("user", a.user.Load()),
		i("tripwire", a.tripwire.Load()), i("rollovers", a.rollovers.Load()))
}

func (s *Status) connectionsDoc() []byte {
	st := s.Network()
	i := func(n string, v int64) value.Field { return value.F(n, value.NewInt32(int32(v))) }
	return value.Doc(i("current", st.Current), i("available", max(st.Available, 0)), i("totalCreated", st.TotalCreated), i("rejected", st.Rejected),
		i("active", st.Active), i("threaded", st.Current), i("exhaustIsMaster", s.hellos.isMaster.Load()),
		i("exhaustHello", s.hellos.hello.Load()), i("awaitingTopologyChanges", s.hellos.awaiting.Load()),
		i("loadBalanced", st.LoadBalanced), i("queuedForEstablishment", st.Admission.Waiting),
		subDoc("establishmentRateLimit", i64("rejected", st.Admission.Rejected), i64("exempted", st.Admission.Exempted),
			i64("interruptedDueToClientDisconnect", st.Admission.Interrupted)))
}

// queuesDoc reports the queue of connections that wait for the rate limiter.
func (s *Status) queuesDoc() []byte {
	a := s.Network().Admission
	average := 0.0
	if a.Dequeued > 0 {
		average = float64(a.QueuedMicros) / float64(a.Dequeued)
	}
	return value.Doc(subDoc("ingressSessionEstablishment",
		i64("addedToQueue", a.Queued), i64("removedFromQueue", a.Dequeued), i64("interruptedInQueue", a.Interrupted),
		i64("rejectedAdmissions", a.Rejected), i64("exemptedAdmissions", a.Exempted), i64("successfulAdmissions", a.Admitted),
		i64("attemptedAdmissions", a.Attempts), value.F("averageTimeQueuedMicros", value.NewDouble(average)),
		value.F("totalAvailableTokens", value.NewInt64(int64(min(a.Tokens, 1<<62))))))
}

func (s *Status) networkDoc() []byte {
	st := s.Network()
	var comp []value.Field
	for _, c := range st.Compression {
		comp = append(comp, subDoc(c.Name, subDoc("compressor", i64("bytesIn", c.CompressIn), i64("bytesOut", c.CompressOut)),
			subDoc("decompressor", i64("bytesIn", c.DecompressIn), i64("bytesOut", c.DecompressOut))))
	}
	return value.Doc(i64("bytesIn", st.LogicalBytesIn), i64("bytesOut", st.LogicalBytesOut), i64("physicalBytesIn", st.BytesIn),
		i64("physicalBytesOut", st.BytesOut), i64("numSlowDNSOperations", 0), i64("numSlowSSLOperations", 0), i64("numRequests", st.NumRequests),
		subDoc("tcpFastOpen", i64("kernelSetting", 0), value.F("serverSupported", value.NewBool(false)), value.F("clientSupported", value.NewBool(false)),
			subDoc("accepted", i64("count", 0))),
		subDoc("compression", comp...))
}

func (s *Status) latenciesDoc() []byte {
	kind := func(name string, l *latency) value.Field {
		return subDoc(name, i64("latency", l.micros.Load()), i64("ops", l.ops.Load()), i64("queryableEncryptionLatencyMicros", 0))
	}
	return value.Doc(kind("reads", &s.lat[latReads]), kind("writes", &s.lat[latWrites]), kind("commands", &s.lat[latCommands]),
		subDoc("transactions", i64("latency", 0), i64("ops", 0)))
}

func (s *Status) securityDoc(fields ...value.Field) []byte {
	if f := s.security.Load(); f != nil {
		fields = append((*f)(), fields...)
	}
	return value.Doc(fields...)
}

func extraInfo() []byte {
	var r syscall.Rusage
	_ = syscall.Getrusage(syscall.RUSAGE_SELF, &r)
	return value.Doc(value.F("note", value.NewString("fields vary by platform")),
		i64("user_time_us", r.Utime.Nano()/1000), i64("system_time_us", r.Stime.Nano()/1000), i64("maximum_resident_set_kb", r.Maxrss),
		i64("input_blocks", r.Inblock), i64("output_blocks", r.Oublock), i64("page_reclaims", r.Minflt), i64("page_faults", r.Majflt),
		i64("voluntary_context_switches", r.Nvcsw), i64("involuntary_context_switches", r.Nivcsw), i64("threads", int64(runtime.NumGoroutine())))
}

// goMemory reports the allocator's figures under the real section's name.
func goMemory() []byte {
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return value.Doc(subDoc("generic", i64("current_allocated_bytes", int64(m.HeapAlloc)), i64("heap_size", int64(m.HeapSys)),
		i64("peak_memory_usage", int64(m.Sys))), subDoc("tcmalloc", i64("pageheap_free_bytes", int64(m.HeapIdle-m.HeapReleased)),
		i64("pageheap_unmapped_bytes", int64(m.HeapReleased)), i64("max_total_thread_cache_bytes", 0), i64("current_total_thread_cache_bytes", 0)))
}

// MemDoc returns the section mem.
func MemDoc() []byte {
	resident, virtual := memoryReport()
	return value.Doc(value.F("bits", value.NewInt32(64)), value.F("resident", value.NewInt32(int32(resident))),
		value.F("virtual", value.NewInt32(int32(virtual))), value.F("supported", value.NewBool(true)))
}

// CommandCounters returns metrics.commands: how often each command ran and failed.
func (s *Service) CommandCounters() []byte {
	out, m := value.Begin(nil)
	unknown := s.unknown.Load()
	out = value.Append(out, "<UNKNOWN>", value.NewInt64(unknown))
	for _, spec := range s.Table.Specs() {
		c := s.CounterOf(spec)
		fields := []value.Field{i64("failed", c.Failed.Load()), i64("rejected", c.Rejected.Load()), i64("total", c.Total.Load())}
		switch spec.Name {
		case "update", "findAndModify", "bulkWrite":
			fields = append(fields, i64("arrayFilters", c.ArrayFilters.Load()), i64("pipeline", c.Pipelines.Load()))
		}
		out = value.Append(out, spec.Name, value.NewDocument(value.Doc(fields...)))
	}
	return value.End(out, m)
}

// connSpecs returns the commands about connections.
func (s *Service) connSpecs() []Spec {
	return []Spec{
		{Name: "connectionStatus", Roles: All, NoAuth: true, API: true, Fields: []Field{Opt("showPrivileges", TSafeBool)}, Run: runConnectionStatus},
		{Name: "connPoolStats", Roles: All, Lenient: true, Run: s.runConnPoolStats},
		{Name: "connPoolSync", Roles: All, Lenient: true, Run: s.runConnPoolSync},
		{Name: "dropConnections", Roles: All, AdminOnly: true, Fields: []Field{Req("hostAndPort", TArray)}, Run: s.runDropConnections},
	}
}

func runConnectionStatus(op *Op, dst []byte) ([]byte, error) {
	if a := op.Service.Access; a != nil {
		return a.connectionStatus(op, dst)
	}
	fields := []value.Field{
		value.F("authenticatedUsers", value.NewArray(value.ArrayOf())), value.F("authenticatedUserRoles", value.NewArray(value.ArrayOf())),
	}
	if op.Bool("showPrivileges") {
		fields = append(fields, value.F("authenticatedUserPrivileges", value.NewArray(value.ArrayOf())))
	}
	dst = value.Append(dst, "authInfo", value.NewDocument(value.Doc(fields...)))
	id := op.Client.UUID()
	return value.Append(dst, "uuid", value.NewBinary(4, id[:])), nil
}
