package command

import (
	"context"
	"math"
	"os"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// Info gives a node access to its process.
type Info struct {
	Host    string // host:port, as the real server prints it
	Argv    []string
	Options []byte // getCmdLineOpts.parsed
	// Shutdown begins an orderly shutdown of the process, during which running operations may continue for the given time.
	Shutdown func(quiesce time.Duration)
	// MayShutDown prepares the node for a shutdown, or refuses it; nil if nothing has to be prepared.
	MayShutDown func(ctx context.Context, wait time.Duration, force bool) error
	// RotateLog begins a new file of the log "server" or "audit", or of both for an empty name.
	RotateLog func(name string) error
	// Log returns the lines of one of getLog's logs; ok is false for an unknown name.
	Log func(name string) (lines []string, total int64, ok bool)
	// AppMessage logs a message from an application; nil if there is no log.
	AppMessage func(text string)
	// RotateCertificates reads the certificates again; nil if there are none.
	RotateCertificates func() error
	// LogNames lists the logs that Log can return.
	LogNames []string
}

// AddGeneric registers the commands that all roles share.
func (s *Service) AddGeneric(info *Info) {
	s.Status.Host, s.Status.Process = info.Host, "mongod"
	if s.Role == Router {
		s.Status.Process = "mongos"
	}
	s.addGenericStatus()
	s.Table.Add(s.statusSpec())
	s.Table.Add(s.connSpecs()...)
	s.Table.Add(MapReduceSpec())
	s.Table.Add(
		Spec{Name: "ping", Roles: All, NoAuth: true, API: true, Run: func(op *Op, dst []byte) ([]byte, error) { return dst, nil }},
		Spec{Name: "buildInfo", Aliases: []string{"buildinfo"}, Roles: All, NoAuth: true, Run: runBuildInfo},
		Spec{Name: "hostInfo", Roles: All, AdminOnly: false, Run: info.runHostInfo},
		Spec{Name: "whatsmyuri", Roles: All, NoAuth: true, Lenient: true, Run: func(op *Op, dst []byte) ([]byte, error) {
			return value.Append(dst, "you", value.NewString(op.Client.Remote)), nil
		}},
		Spec{Name: "getCmdLineOpts", Roles: All, AdminOnly: true, Run: info.runCmdLineOpts},
		Spec{Name: "getLog", Roles: All, AdminOnly: true, ArgTypes: TString, Run: info.runGetLog},
		Spec{Name: "logRotate", Roles: All, AdminOnly: true, ArgTypes: TAny, Run: info.runLogRotate},
		Spec{Name: "shutdown", Roles: All, AdminOnly: true, Fields: []Field{Opt("force", TSafeBool), Opt("timeoutSecs", TNumber)}, Run: info.runShutdown},
		Spec{Name: "listCommands", Roles: All, NoAuth: true, Lenient: true, Run: runListCommands},
		Spec{Name: "features", Roles: All, Fields: []Field{Opt("oidReset", TAny)}, Run: runFeatures},
		Spec{Name: "killOp", Roles: All, AdminOnly: true, Lenient: true, Fields: []Field{Opt("op", TAny)}, Run: KillOp},
		Spec{Name: "rotateCertificates", Roles: All, AdminOnly: true, Fields: []Field{Opt("message", TString)}, Run: info.runRotateCertificates},
		Spec{Name: "logApplicationMessage", Roles: All, AdminOnly: true, ArgTypes: TString, Run: info.runLogApplicationMessage},
		Spec{Name: "logMessage", Roles: All, AdminOnly: true, TestOnly: true, ArgTypes: TAny, Lenient: true, Run: func(op *Op, dst []byte) ([]byte, error) { return dst, nil }},
	)
}

func runBuildInfo(op *Op, dst []byte) ([]byte, error) {
	dst = value.Append(dst, "version", value.NewString(Version))
	dst = value.Append(dst, "gitVersion", value.NewString(ThisBuild().GitVersion()))
	dst, m := value.BeginKey(dst, value.Array, "modules")
	dst = value.End(dst, m)
	dst = value.Append(dst, "allocator", value.NewString(allocator))
	dst = value.Append(dst, "javascriptEngine", value.NewString("goja"))
	dst = value.Append(dst, "sysInfo", value.NewString("deprecated"))
	dst, m = value.BeginKey(dst, value.Array, "versionArray")
	for i, p := range strings.Split(Version, ".") {
		n, _ := strconv.Atoi(p)
		dst = value.AppendIndex(dst, i, value.NewInt32(int32(n)))
	}
	dst = value.AppendIndex(dst, 3, value.NewInt32(0))
	dst = value.End(dst, m)
	dst, m = value.BeginKey(dst, value.Document, "openssl")
	dst = value.Append(dst, "running", value.NewString("Go crypto/tls"))
	dst = value.Append(dst, "compiled", value.NewString(runtime.Version()))
	dst = value.End(dst, m)
	dst, m = value.BeginKey(dst, value.Document, "buildEnvironment")
	for _, f := range [][2]string{
		{"distmod", ""}, {"distarch", arch()}, {"cc", runtime.Compiler + " " + runtime.Version()}, {"ccflags", ""}, {"cxx", ""},
		{"cxxflags", ""}, {"linkflags", ""}, {"target_arch", arch()}, {"target_os", runtime.GOOS}, {"cppdefines", ""},
	} {
		dst = value.Append(dst, f[0], value.NewString(f[1]))
	}
	dst = value.End(dst, m)
	dst = value.Append(dst, "bits", value.NewInt32(64))
	dst = value.Append(dst, "debug", value.NewBool(false))
	dst = value.Append(dst, "maxBsonObjectSize", value.NewInt32(MaxBSONSize))
	dst, m = value.BeginKey(dst, value.Array, "storageEngines")
	dst = value.AppendIndex(dst, 0, value.NewString("pebble"))
	return value.End(dst, m), nil
}

func arch() string {
	switch runtime.GOARCH {
	case "amd64":
		return "x86_64"
	case "arm64":
		return "aarch64"
	}
	return runtime.GOARCH
}

// osFacts are read once: they do not change while the process runs.
var osFacts = sync.OnceValue(func() (f struct{ name, version, kernel, cpu, mhz, features string }) {
	f.name = runtime.GOOS
	for _, line := range fileLines("/etc/os-release") {
		if v, ok := strings.CutPrefix(line, "PRETTY_NAME="); ok {
			f.name = strings.Trim(v, `"`)
		}
		if v, ok := strings.CutPrefix(line, "VERSION_ID="); ok {
			f.version = strings.Trim(v, `"`)
		}
	}
	if l := fileLines("/proc/version"); len(l) > 0 {
		f.kernel = l[0]
	}
	for _, line := range fileLines("/proc/cpuinfo") {
		k, v, _ := strings.Cut(line, ":")
		switch strings.TrimSpace(k) {
		case "cpu MHz":
			f.mhz = strings.TrimSpace(v)
		case "model name":
			f.cpu = strings.TrimSpace(v)
		case "flags":
			f.features = strings.TrimSpace(v)
		}
	}
	return f
})

func fileLines(name string) []string {
	b, err := os.ReadFile(name)
	if err != nil {
		return nil
	}
	return strings.Split(strings.TrimRight(string(b), "\n"), "\n")
}

// MemTotalMB returns the machine's memory in MiB, 0 if it is not known.
func MemTotalMB() int64 {
	for _, line := range fileLines("/proc/meminfo") {
		if v, ok := strings.CutPrefix(line, "MemTotal:"); ok {
			kb, _ := strconv.ParseInt(strings.TrimSpace(strings.TrimSuffix(strings.TrimSpace(v), "kB")), 10, 64)
			return kb / 1024
		}
	}
	return 0
}

func (info *Info) runHostInfo(op *Op, dst []byte) ([]byte, error) {
	f := osFacts()
	dst, m := value.BeginKey(dst, value.Document, "system")
	dst = value.Append(dst, "currentTime", value.NewTime(time.Now()))
	dst = value.Append(dst, "hostname", value.NewString(info.Host))
	dst = value.Append(dst, "cpuAddrSize", value.NewInt32(64))
	dst = value.Append(dst, "memSizeMB", value.NewInt64(MemTotalMB()))
	dst = value.Append(dst, "memLimitMB", value.NewInt64(MemTotalMB()))
	dst = value.Append(dst, "numCores", value.NewInt32(int32(runtime.NumCPU())))
	dst = value.Append(dst, "numCoresAvailableToProcess", value.NewInt32(int32(runtime.GOMAXPROCS(0))))
	dst = value.Append(dst, "numPhysicalCores", value.NewInt32(int32(runtime.NumCPU())))
	dst = value.Append(dst, "numCpuSockets", value.NewInt32(1))
	dst = value.Append(dst, "cpuArch", value.NewString(arch()))
	dst = value.Append(dst, "numaEnabled", value.NewBool(false))
	dst = value.Append(dst, "numNumaNodes", value.NewInt32(1))
	dst = value.End(dst, m)
	dst, m = value.BeginKey(dst, value.Document, "os")
	dst = value.Append(dst, "type", value.NewString(strings.ToUpper(runtime.GOOS[:1])+runtime.GOOS[1:]))
	dst = value.Append(dst, "name", value.NewString(f.name))
	dst = value.Append(dst, "version", value.NewString(f.version))
	dst = value.End(dst, m)
	dst, m = value.BeginKey(dst, value.Document, "extra")
	dst = value.Append(dst, "versionString", value.NewString(f.kernel))
	dst = value.Append(dst, "cpuString", value.NewString(f.cpu))
	dst = value.Append(dst, "cpuFrequencyMHz", value.NewString(f.mhz))
	dst = value.Append(dst, "cpuFeatures", value.NewString(f.features))
	dst = value.Append(dst, "libcVersion", value.NewString("none"))
	dst = value.Append(dst, "kernelVersion", value.NewString(kernelRelease()))
	dst = value.Append(dst, "pageSize", value.NewInt64(int64(os.Getpagesize())))
	dst = value.Append(dst, "numPages", value.NewInt32(int32(MemTotalMB()<<20/int64(os.Getpagesize()))))
	dst = value.Append(dst, "maxOpenFiles", value.NewInt32(maxOpenFiles()))
	return value.End(dst, m), nil
}

func kernelRelease() string {
	if l := fileLines("/proc/sys/kernel/osrelease"); len(l) > 0 {
		return l[0]
	}
	return ""
}

func maxOpenFiles() int32 {
	var r syscall.Rlimit
	if syscall.Getrlimit(syscall.RLIMIT_NOFILE, &r) != nil {
		return 0
	}
	return int32(min(r.Cur, 1<<31-1))
}

func (info *Info) runCmdLineOpts(op *Op, dst []byte) ([]byte, error) {
	dst, m := value.BeginKey(dst, value.Array, "argv")
	for i, a := range info.Argv {
		dst = value.AppendIndex(dst, i, value.NewString(a))
	}
	dst = value.End(dst, m)
	opts := info.Options
	if opts == nil {
		opts = value.Doc()
	}
	return value.Append(dst, "parsed", value.NewDocument(opts)), nil
}

func (info *Info) runGetLog(op *Op, dst []byte) ([]byte, error) {
	name := op.Req.Cmd.Str()
	if name == "*" {
		dst, m := value.BeginKey(dst, value.Array, "names")
		for i, n := range info.LogNames {
			dst = value.AppendIndex(dst, i, value.NewString(n))
		}
		return value.End(dst, m), nil
	}
	if info.Log == nil {
		return dst, mongoerr.Newf(mongoerr.OperationFailed, "No log named '%s'", name)
	}
	lines, total, ok := info.Log(name)
	if !ok {
		return dst, mongoerr.Newf(mongoerr.OperationFailed, "No log named '%s'", name)
	}
	dst = value.Append(dst, "totalLinesWritten", value.NewInt32(int32(total)))
	dst, m := value.BeginKey(dst, value.Array, "log")
	for i, l := range lines {
		dst = value.AppendIndex(dst, i, value.NewString(l))
	}
	return value.End(dst, m), nil
}

func (info *Info) runLogRotate(op *Op, dst []byte) ([]byte, error) {
	name, v := "", op.Req.Cmd
	switch {
	case v.T == value.String:
		if name = v.Str(); name != "server" && (name != "audit" || op.Service.Audit == nil) {
			return dst, mongoerr.Newf(mongoerr.NoSuchKey, "Unknown log type '%s'", name)
		}
	case v.T != value.Boolean && !v.T.Numeric():
		return dst, WrongType("logRotate.logRotate", v.T, TSafeBool|TString)
	}
	if info.RotateLog == nil {
		return dst, nil
	}
	if err := info.RotateLog(name); err != nil {
		return dst, mongoerr.New(mongoerr.FileRenameFailed, err.Error())
	}
	return dst, nil
}

func (info *Info) runRotateCertificates(op *Op, dst []byte) ([]byte, error) {
	if info.RotateCertificates == nil {
		return dst, nil // without TLS there is nothing to read, and the real server reports ok
	}
	return dst, info.RotateCertificates()
}

func (info *Info) runLogApplicationMessage(op *Op, dst []byte) ([]byte, error) {
	if info.AppMessage != nil {
		info.AppMessage(op.Req.Cmd.Str())
	}
	return dst, nil
}

// DefaultQuiesce is the time for which a shutdown lets operations continue if the command sets none.
const DefaultQuiesce = 15 * time.Second

func (info *Info) runShutdown(op *Op, dst []byte) ([]byte, error) {
	if info.Shutdown == nil {
		return dst, mongoerr.New(mongoerr.IllegalOperation, "this node cannot be shut down by command")
	}
	force, quiesce := op.Bool("force"), DefaultQuiesce
	switch v := op.Arg("timeoutSecs"); {
	case !v.IsMissing():
		secs := value.SafeInt64(v)
		if secs < 0 || secs > math.MaxInt32 {
			return dst, mongoerr.Newf(mongoerr.BadValue, "timeoutSecs must be from 0 to %d", math.MaxInt32)
		}
		quiesce = time.Duration(secs) * time.Second
	case force:
		quiesce = 0 // running operations are interrupted
	}
	if info.MayShutDown != nil {
		if err := info.MayShutDown(op, quiesce, force); err != nil {
			return dst, err
		}
	}
	op.Audit("shutdown", mongoerr.OK) // now: the command has no successful reply
	info.Shutdown(quiesce)
	if op.Client.Close != nil {
		op.Client.Close() // the real server closes the socket instead of replying
	}
	return dst, mongoerr.New(mongoerr.CloseConnectionForShutdownCommand, "server is shutting down")
}

func runListCommands(op *Op, dst []byte) ([]byte, error) {
	dst, m := value.BeginKey(dst, value.Document, "commands")
	for _, s := range op.Service.Table.Specs() {
		if s.Internal || s.TestOnly {
			continue
		}
		var sm int
		dst, sm = value.BeginKey(dst, value.Document, s.Name)
		dst = value.Append(dst, "help", value.NewString(s.Help()))
		dst = value.Append(dst, "requiresAuth", value.NewBool(!s.NoAuth))
		dst = value.Append(dst, "secondaryOk", value.NewBool(s.Kind == None || s.Kind == Read))
		dst = value.Append(dst, "adminOnly", value.NewBool(s.AdminOnly))
		var am int
		dst, am = value.BeginKey(dst, value.Array, "apiVersions")
		if s.API {
			dst = value.AppendIndex(dst, 0, value.NewString("1"))
		}
		dst = value.End(dst, am)
		dst, am = value.BeginKey(dst, value.Array, "deprecatedApiVersions")
		dst = value.End(dst, am)
		dst = value.End(dst, sm)
	}
	return value.End(dst, m), nil
}

func runFeatures(op *Op, dst []byte) ([]byte, error) {
	dst, m := value.BeginKey(dst, value.Document, "js")
	dst = value.Append(dst, "utf8", value.NewBool(true))
	dst = value.End(dst, m)
	return value.Append(dst, "oidMachine", value.NewInt32(int32(os.Getpid()))), nil
}

// KillOp implements killOp for the operations of this node.
func KillOp(op *Op, dst []byte) ([]byte, error) {
	v := op.Arg("op")
	if v.IsMissing() {
		return dst, mongoerr.New(mongoerr.NoSuchKey, "Did not provide \"op\" field")
	}
	if !v.T.Numeric() {
		return dst, mongoerr.Newf(mongoerr.TypeMismatch, "Expected field \"op\" to have numeric type, but found %s", v.T.Name())
	}
	id, ok := v.AsInt64()
	if !ok {
		return dst, mongoerr.New(mongoerr.BadValue, "Expected field \"op\" to have a value exactly representable as a 64-bit integer")
	}
	if id < -1<<31 || id > 1<<31-1 {
		return dst, mongoerr.New(26823, "invalid op : "+strconv.FormatInt(id, 10))
	}
	if !op.Allowed("killop", "", "") && !op.ownOp(int32(id)) {
		return dst, op.Refuse()
	}
	op.Service.KillOp(int32(id), mongoerr.Interrupted)
	return value.Append(dst, "info", value.NewString("attempting to kill op")), nil
}

// ownOp reports whether an operation belongs to the same user; false if there is no such operation.
func (op *Op) ownOp(id int32) (own bool) {
	op.Service.EachOp(func(other *Op) { own = own || other.ID == id && other.servedFor() == op.servedFor() })
	return own
}

// memoryReport returns the mem section of serverStatus, from the runtime's own figures.
func memoryReport() (residentMB, virtualMB int64) {
	for _, line := range fileLines("/proc/self/status") {
		k, v, _ := strings.Cut(line, ":")
		n, _ := strconv.ParseInt(strings.TrimSpace(strings.TrimSuffix(strings.TrimSpace(v), "kB")), 10, 64)
		switch k {
		case "VmRSS":
			residentMB = n / 1024
		case "VmSize":
			virtualMB = n / 1024
		}
	}
	return residentMB, virtualMB
}
