package write

// duringUpdate and duringFindAndModify name the execution that an error is attributed to.
const (
	duringUpdate        = "Plan executor error during update"
	duringFindAndModify = "Plan executor error during findAndModify"
)
