// Package collation parses collation documents and orders strings by them.
//
//	document ──Parse──► Spec ──Spec.Collator──► value.Collator (nil for the simple collation)
//	                      └──Spec.Document──► the full form listCollections prints
package collation
