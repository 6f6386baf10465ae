package mongoerr

// Category groups codes that are treated alike; a code may be in several. Which code is in which is data of errors.json
// (the drivers' specifications "Retryable Writes", "Retryable Reads", "Server Discovery and Monitoring" and
// "Transactions"; the manual's page on error codes).
type Category uint16

// The categories.
const (
	CategoryNetwork       Category = 1 << iota // the other end could not be reached or disconnected
	CategoryNotPrimary                         // the node is not, or no longer, the primary
	CategoryShutdown                           // the node is shutting down
	CategoryInterruption                       // the operation was stopped from outside
	CategoryTimeLimit                          // a deadline passed
	CategoryStaleRouting                       // the sender used an old routing table; refresh and retry
	CategorySnapshot                           // the requested snapshot is not available
	CategoryWriteConcern                       // the write happened, its write concern was not satisfied
	CategoryRetryable                          // a retryable write may be sent again
	CategoryRetryableRead                      // a read may be sent again; in addition to CategoryRetryable
	CategoryTransient                          // the transaction may be run again from its start
)

// Error labels.
const (
	LabelTransientTransaction = "TransientTransactionError"
	LabelUnknownCommit        = "UnknownTransactionCommitResult"
	LabelRetryableWrite       = "RetryableWriteError"
	LabelResumableStream      = "ResumableChangeStreamError"
	LabelNoWritesPerformed    = "NoWritesPerformed"
	LabelNonResumableStream   = "NonResumableChangeStreamError"
	LabelOverloaded           = "SystemOverloadedError"
)

// EveryLabel returns the label that errors with c have whatever the command is, "" for none.
func (c Code) EveryLabel() string {
	switch c {
	case ChangeStreamFatalError, ChangeStreamHistoryLost:
		return LabelNonResumableStream
	case AdmissionQueueOverflow, RateLimitExceeded, PooledConnectionAcquisitionRejected, IngressRequestRateLimitExceeded:
		return LabelOverloaded
	}
	return ""
}

// In reports whether c belongs to one of the categories.
func (c Code) In(cat Category) bool { return categories[c]&cat != 0 }

// In reports whether err has a code of one of the categories; nil has none.
func In(err error, cat Category) bool { return err != nil && CodeOf(err).In(cat) }

// IsRetryableWrite reports whether a retryable write that failed with c gets the label RetryableWriteError.
func (c Code) IsRetryableWrite() bool { return c.In(CategoryRetryable) }

// IsRetryableRead reports whether a read that failed with c is sent again.
func (c Code) IsRetryableRead() bool { return c.In(CategoryRetryable | CategoryRetryableRead) }

// IsNotPrimary reports whether c means that the node does not accept writes now.
func (c Code) IsNotPrimary() bool { return c.In(CategoryNotPrimary) }

// IsInterruption reports whether the operation was stopped from outside: killed, timed out, shut down.
func (c Code) IsInterruption() bool { return c.In(CategoryInterruption) }

// IsNetwork reports whether the other end could not be reached or disconnected.
func (c Code) IsNetwork() bool { return c.In(CategoryNetwork) }

// IsStaleRouting reports whether the sender has to refresh its routing table and try again.
func (c Code) IsStaleRouting() bool { return c.In(CategoryStaleRouting) }

// IsTransientTransaction reports whether a statement of a transaction (or, when commit is true, its commitTransaction)
// that failed with c gets the label TransientTransactionError. A commit that was interrupted may have happened, so for
// retryable codes only statements get it.
func (c Code) IsTransientTransaction(commit bool) bool {
	if commit {
		return c.In(CategoryTransient)
	}
	return c.In(CategoryTransient | CategoryRetryable)
}

// IsResumableStream reports whether a change stream that ended with c gets the label ResumableChangeStreamError.
func (c Code) IsResumableStream() bool {
	switch c {
	case CursorNotFound, FailedToSatisfyReadPreference, RetryChangeStream, StaleEpoch, StaleShardVersion, StaleConfig,
		CloseChangeStream, StaleDbVersion:
		return true
	}
	return c.In(CategoryRetryable)
}

// ResumableStream returns the error of a change stream, with the label ResumableChangeStreamError if the stream can be resumed after it.
func ResumableStream(err error) error {
	if err == nil || !CodeOf(err).IsResumableStream() {
		return err
	}
	return From(err).WithLabel(LabelResumableStream)
}

// HasLabel reports whether e has label.
func (e *Error) HasLabel(label string) bool {
	for _, l := range e.Labels {
		if l == label {
			return true
		}
	}
	return false
}
