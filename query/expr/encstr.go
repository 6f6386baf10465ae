package expr

import (
	"github.com/shoaldb/shoal/query/value"
	"github.com/shoaldb/shoal/wire/mongoerr"
)

func init() {
	for name, key := range map[string]string{
		"$encStrStartsWith": "prefix", "$encStrEndsWith": "suffix", "$encStrContains": "substring", "$encStrNormalizedEq": "string",
	} {
		register(&operator{name: name, fields: []field{{"input", mongoerr.FailedToParse}, {key, mongoerr.FailedToParse}},
			words: wording{object: mongoerr.FailedToParse, unknown: mongoerr.FailedToParse,
				onObject: "%[1]s only supports an object as an argument, found %[2]s", onUnknown: "%[1]s found an unknown argument: %[2]s",
				onMiss: "%[1]s requires '%[2]s' to be specified"},
			prepare: prepareEncStr, eval: evalEncStr})
	}
}

// prepareEncStr checks that the string to search for is a constant, in plain text or encrypted by the client, and that the input is a field.
func prepareEncStr(c *call, _ *Scope) error {
	if _, ok := c.args[0].(*constant); ok {
		return mongoerr.Newf(mongoerr.FailedToParse, "%s requires that 'input' be a field path", c.op.name)
	}
	k, ok := c.args[1].(*constant)
	if !ok || k.v.T != value.String && k.v.T != value.Binary {
		return mongoerr.Newf(mongoerr.FailedToParse, "%s requires that '%s' be a constant string", c.op.name, c.op.fields[1].name)
	}
	return nil
}

// encrypted is the subtype of encrypted values.
const encrypted = 6

// evalEncStr evaluates a search in encrypted text that no client has rewritten. A missing value matches nothing;
// unencrypted values cannot be searched this way.
func evalEncStr(f *Frame, c *call) (value.Value, error) {
	v, err := c.args[0].eval(f)
	if err != nil {
		return v, err
	}
	if v.IsNullish() {
		return value.NewBool(false), nil
	}
	if v.T != value.Binary || v.Subtype() != encrypted {
		return v, mongoerr.Newf(mongoerr.BadValue, "%s requires an encrypted field, found: %s", c.op.name, v.T.Name())
	}
	return v, mongoerr.Newf(mongoerr.BadValue, "%s requires a search value that the client has encrypted", c.op.name)
}
