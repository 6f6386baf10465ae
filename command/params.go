package command

import (
	"context"
	"time"

	"github.com/shoaldb/shoal/cluster"
	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

// paramSpecs returns the commands on server parameters and fail points.
func (b *Base) paramSpecs() []Spec {
	return []Spec{
		{Name: "getParameter", Roles: All, AdminOnly: true, Lenient: true, ArgTypes: TAny, Run: b.runGetParameter},
		{Name: "setParameter", Roles: All, AdminOnly: true, Lenient: true, ArgTypes: TAny, Run: b.runSetParameter},
		{
			Name: "configureFailPoint", Roles: All, AdminOnly: true, ArgTypes: TAny, Run: b.runConfigureFailPoint, TestOnly: true,
			Fields: []Field{Req("mode", TAny), Opt("data", TObject)},
		},
		{Name: "testDeprecation", Roles: All, TestOnly: true, API: true, Run: runTestVersion},
		{Name: "testRemoval", Roles: All, TestOnly: true, API: true, Run: runTestVersion},
		{Name: "testVersion2", Roles: All, TestOnly: true, Run: runTestVersion},
		{Name: "testDeprecationInVersion2", Roles: All, TestOnly: true, Run: runTestVersion},
		{Name: "testVersions1And2", Roles: All, TestOnly: true, API: true, Run: runTestVersion},
		{
			Name: "waitForFailPoint", Roles: All, AdminOnly: true, ArgTypes: TString, Run: b.runWaitForFailPoint, TestOnly: true,
			Fields: []Field{Req("timesEntered", TNumber)},
		},
	}
}

// runTestVersion is the handler of commands that exist only for tests of the stable API, which test whether the
// commands may run.
func runTestVersion(_ *Op, dst []byte) ([]byte, error) { return dst, nil }

// IsGeneric reports whether a top-level field is one that any command may have.
func IsGeneric(k string) bool {
	var r Request
	r.Spec = &Spec{}
	known, _ := r.generic([]byte(k), value.Value{})
	return known
}

func (b *Base) runGetParameter(op *Op, dst []byte) ([]byte, error) {
	cmd := op.Req.Cmd
	all, details, setAt := cmd.T == value.String && cmd.Str() == "*", false, ""
	if cmd.T == value.Document {
		for k, v := range value.Elements(cmd.Doc()) {
			switch k {
			case "allParameters", "showDetails":
				if v.IsNullish() {
					continue
				}
				if !TSafeBool.accepts(v.T) {
					return dst, WrongType("getParameter."+k, v.T, TSafeBool)
				}
				if k == "showDetails" {
					details = v.Truthy()
				} else {
					all = v.Truthy()
				}
			case "setAt":
				if v.IsNullish() {
					continue
				}
				if v.T != value.String {
					return dst, WrongType("getParameter.setAt", v.T, TString)
				}
				setAt = v.Str()
				if setAt != "startup" && setAt != "runtime" {
					return dst, mongoerr.Newf(mongoerr.BadValue, "Enumeration value '%s' for field 'getParameter.setAt' is not a valid value.", setAt)
				}
			default:
				return dst, UnknownField("getParameter." + k)
			}
		}
	}
	before := len(dst)
	emit := func(p *cluster.Param) {
		if !p.Spec.Allowed(setAt) || p.Spec.TestOnly && !b.Params.TestCommands() || p.Spec.Members && b.Service.Role == Router {
			return
		}
		if !details {
			dst = value.Append(dst, p.Spec.Name, p.Value())
			return
		}
		var m int
		dst, m = value.BeginKey(dst, value.Document, p.Spec.Name)
		dst = value.Append(dst, "value", p.Value())
		dst = value.Append(dst, "settableAtRuntime", value.NewBool(p.Spec.Allowed("runtime")))
		dst = value.Append(dst, "settableAtStartup", value.NewBool(p.Spec.Allowed("startup")))
		dst = value.End(dst, m)
	}
	if all {
		for _, n := range b.Params.Names() {
			emit(b.Params.Get(n))
		}
	} else {
		first := true
		for k := range value.Elements(op.Req.Body) {
			if p, ok := b.Params.Lookup(k); ok && !first {
				emit(p)
			}
			first = false
		}
	}
	if len(dst) == before {
		return dst, mongoerr.New(mongoerr.InvalidOptions, "no option found to get")
	}
	return dst, nil
}

func (b *Base) runSetParameter(op *Op, dst []byte) ([]byte, error) {
	var fields []value.Field
	first := true
	for k, v := range value.Elements(op.Req.Body) {
		if !first && !IsGeneric(k) {
			fields = append(fields, value.F(k, v))
		}
		first = false
	}
	was, err := b.Params.SetRuntime(fields)
	if err != nil {
		return dst, err
	}
	return value.Append(dst, "was", was), nil
}

func (b *Base) runConfigureFailPoint(op *Op, dst []byte) ([]byte, error) {
	if op.Req.Cmd.T != value.String {
		return dst, WrongType("configureFailPoint.configureFailPoint", op.Req.Cmd.T, TString)
	}
	n, err := b.FailPoints.Configure(op.Req.Cmd.Str(), op.Arg("mode"), op.Req.Doc("data"))
	if err != nil {
		return dst, err
	}
	return value.Append(dst, "count", value.NewInt32(int32(n))), nil
}

func (b *Base) runWaitForFailPoint(op *Op, dst []byte) ([]byte, error) {
	f, err := b.FailPoints.Lookup(op.Req.Cmd.Str())
	if err != nil {
		return dst, err
	}
	ctx, cancel := context.WithTimeout(op, 10*time.Minute)
	defer cancel()
	return dst, f.WaitEntered(ctx, op.Req.Int("timesEntered", 0))
}
