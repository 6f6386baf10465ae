package command

import "github.com/shoaldb/shoal/cluster/msg"

// Internal makes the row of a command that nodes send each other: its name, the type of its value and its fields
// are those of the message M, which run receives parsed. The caller adds the roles and anything else that the
// row needs.
func Internal[M any, P interface {
	*M
	msg.Message
}](run func(op *Op, m P, dst []byte) ([]byte, error)) Spec {
	d := msg.Describe(P(new(M)))
	s := Spec{Name: d.Name, ArgTypes: kindTypes[d.Value], Internal: true, AdminOnly: true}
	for _, f := range d.Fields {
		s.Fields = append(s.Fields, Field{Name: f.Name, Types: kindTypes[f.Kind], Required: f.Required})
	}
	s.Run = func(op *Op, dst []byte) ([]byte, error) {
		m := P(new(M))
		if err := msg.Parse(op.Req.Body, m); err != nil {
			return dst, err
		}
		return run(op, m, dst)
	}
	return s
}

// kindTypes are the types that the pipeline accepts for each kind of message field. The message's Parse checks them exactly.
var kindTypes = map[msg.Kind]Types{
	msg.Any: TAny, msg.String: TString, msg.Document: TObject, msg.Version: TObject, msg.Array: TArray, msg.Documents: TArray, msg.Strings: TArray,
	msg.Bool: TBool, msg.Flag: TSafeBool, msg.Int: TNumber, msg.Long: TNumber, msg.Timestamp: TOther, msg.ObjectID: TOther, msg.UUID: TOther, msg.Binary: TOther,
}
