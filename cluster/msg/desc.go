package msg

import "github.com/shoaldb/shoal/query/value"

// Kind is the type of a field.
type Kind uint8

// The kinds of fields. A Flag is a boolean or a number, which commands have long accepted; a Version is the
// document that represents a chunk version.
const (
	Any Kind = iota
	String
	Document
	Array
	Documents // an array of documents
	Strings   // an array of strings
	Bool
	Flag
	Int
	Long
	Timestamp
	ObjectID
	UUID
	Binary
	Version
)

var kindNames = [...]string{
	"any", "string", "object", "array", "array of objects", "array of strings", "bool", "bool or number", "int", "long", "timestamp", "objectId", "UUID", "binData", "object",
}

// String returns the name of a kind for errors.
func (k Kind) String() string { return kindNames[k] }

// accepts reports whether a value is of the kind.
func (k Kind) accepts(v value.Value) bool {
	switch k {
	case String:
		return v.T == value.String
	case Document, Version:
		return v.T == value.Document
	case Array:
		return v.T == value.Array
	case Documents, Strings:
		return v.T == value.Array && allAre(v.Doc(), map[Kind]value.Type{Documents: value.Document, Strings: value.String}[k])
	case Bool:
		return v.T == value.Boolean
	case Flag:
		return v.T == value.Boolean || v.T.Numeric()
	case Int, Long:
		_, whole := v.AsInt64()
		return whole
	case Timestamp:
		return v.T == value.Timestamp
	case ObjectID:
		return v.T == value.ObjectID
	case UUID:
		return v.T == value.Binary && v.Subtype() == 4 && len(v.Bytes()) == 16
	case Binary:
		return v.T == value.Binary
	}
	return true
}

func allAre(arr []byte, t value.Type) bool {
	for it := value.Walk(arr); ; {
		switch _, v, ok := it.Next(); {
		case !ok:
			return true
		case v.T != t:
			return false
		}
	}
}

// Field describes one field of a message.
type Field struct {
	Name     string
	Kind     Kind
	Required bool
	Default  bool    // the value of a Flag that was not sent
	Sub      []Field // of a document with fields of its own
}

// Desc describes a message: a command by its name, the type of its value and its fields. A reply has no name.
type Desc struct {
	Name   string
	Value  Kind
	Fields []Field
}

// Describe lists a message's fields.
func Describe(m Message) Desc {
	c := codec{mode: listing, desc: &Desc{}}
	m.fields(&c)
	return *c.desc
}

// Generic reports whether any command may have an argument of that name, which is read by the pipeline and not
// by the command.
func Generic(key []byte) bool {
	switch string(key) {
	case "$db", "lsid", "txnNumber", "autocommit", "startTransaction", "readConcern", "writeConcern", "maxTimeMS", "maxTimeMSOpOnly",
		"comment", "help", "$clusterTime", "shardVersion", "databaseVersion", "$readPreference", "$queryOptions",
		"apiVersion", "apiStrict", "apiDeprecationErrors", "stmtId", "stmtIds", "$configTime", "$topologyTime",
		"$client", "$audit", "clientOperationKey", BypassesWriteBlock, "coordinator", "txnRetryCounter",
		"startOrContinueTransaction", "rawData", "$oplogQueryData", "$replData", "allowImplicitCollectionCreation", "versionContext",
		RequestID:
		return true
	}
	return false
}

// RequestID is the argument with which a router identifies a DDL to its coordinator, so that it can send the command again: {id, again}.
const RequestID = "$ddlRequest"

// BypassesWriteBlock is the argument by which a node tells others that the client that it serves may write while users are blocked (setUserWriteBlockMode). Of others than members it is refused.
const BypassesWriteBlock = "mayBypassWriteBlocking"

// genericReply reports whether any reply may have a field of that name.
func genericReply(key []byte) bool {
	switch string(key) {
	case "ok", "$clusterTime", "operationTime", "$configTime", "$topologyTime", "writeConcernError", "errorLabels":
		return true
	}
	return false
}
