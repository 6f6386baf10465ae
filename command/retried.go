package command

import "github.com/shoaldb/shoal/query/value"

// AppendRetried adds to a reply the ids of the statements that had been executed before. It omits them if the reply would not fit
// into a message: the reply to a retried command with a hundred thousand upserts is filled by their _ids, and without the ids of
// the statements it is as large as the original reply.
func AppendRetried(reply []byte, ids []value.Value) []byte {
	const each, rest = 1 + len("100000") + 4, 16 << 10 // an element of the array; what else is added to the reply
	if len(ids) == 0 || len(reply)+each*len(ids)+rest > MaxMessageSize {
		return reply
	}
	return value.Append(reply, "retriedStmtIds", value.NewArray(value.ArrayOf(ids...)))
}
