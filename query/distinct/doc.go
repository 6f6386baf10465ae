// Package distinct collects the distinct values of a field, as the distinct command does. Nodes collect from documents,
// routers from the shards' replies.
package distinct
