package write

// duringUpdate and duringFindAndModify say in whose execution an error came up.
const (
	duringUpdate        = "Plan executor error during update"
	duringFindAndModify = "Plan executor error during findAndModify"
)
