package js

import (
	"crypto/md5"
	"crypto/rand"
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"strconv"
	"strings"

	"github.com/dop251/goja"

	"github.com/shoaldb/shoal/query/value"
)

// installFunctions defines the functions of the server's JavaScript that are not classes and that prelude.js cannot write.
func (r *Runtime) installFunctions() {
	_ = r.vm.Set("hex_md5", func(s string) string {
		sum := md5.Sum([]byte(s))
		return hex.EncodeToString(sum[:])
	})
	fromHex := func(name string, subtype byte, digits string, size int) goja.Value {
		b, err := hex.DecodeString(strings.ReplaceAll(digits, "-", ""))
		if err != nil || size > 0 && len(b) != size {
			panic(r.vm.NewTypeError("invalid argument of %s", name)) // an exception of JavaScript
		}
		return r.wrap(value.NewBinary(subtype, b))
	}
	_ = r.vm.Set("HexData", func(subtype int, s string) goja.Value { return fromHex("HexData", byte(subtype), s, 0) })
	_ = r.vm.Set("MD5", func(s string) goja.Value { return fromHex("MD5", 5, s, 16) })
	_ = r.vm.Set("UUID", func(c goja.FunctionCall) goja.Value {
		if len(c.Arguments) == 0 {
			return r.wrap(value.NewBinary(4, newUUID()))
		}
		return fromHex("UUID", 4, c.Argument(0).String(), 16)
	})
	_ = r.vm.Set("bsonWoCompare", func(c goja.FunctionCall) goja.Value {
		a, errA := r.fromJS(c.Argument(0))
		b, errB := r.fromJS(c.Argument(1))
		if errA != nil || errB != nil {
			panic(r.vm.NewTypeError("invalid argument of bsonWoCompare"))
		}
		return r.vm.ToValue(value.Compare(a, b))
	})
}

// newUUID makes a random UUID of version 4.
func newUUID() []byte {
	b := random(16)
	b[6], b[8] = b[6]&0x0f|0x40, b[8]&0x3f|0x80
	return b
}

func random(n int) []byte {
	b := make([]byte, n)
	_, _ = rand.Read(b) // never fails: crypto/rand
	return b
}

// binaryText returns a binary value in the form of tojson.
func binaryText(v value.Value) string {
	if b := v.Bytes(); v.Subtype() == 4 && len(b) == 16 {
		return fmt.Sprintf(`UUID("%x-%x-%x-%x-%x")`, b[:4], b[4:6], b[6:8], b[8:10], b[10:])
	}
	return "BinData(" + strconv.Itoa(int(v.Subtype())) + `,"` + base64.StdEncoding.EncodeToString(v.Bytes()) + `")`
}

// binaryMethods are the methods of a BinData object.
var binaryMethods = map[string]func(v value.Value) any{
	"hex":     func(v value.Value) any { return hex.EncodeToString(v.Bytes()) },
	"base64":  func(v value.Value) any { return base64.StdEncoding.EncodeToString(v.Bytes()) },
	"length":  func(v value.Value) any { return len(v.Bytes()) },
	"subtype": func(v value.Value) any { return int(v.Subtype()) },
}
