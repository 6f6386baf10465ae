// Package text is full-text search: the terms of a document in a text index, and the documents that match a $text query.
//
// A document's strings under the index's paths are split into words (words), folded in case and diacritics, stripped of
// stop words and reduced to their stems: Index.Scores returns the terms and their scores, which are the keys of the index.
// A query is parsed by ParseQuery, gets its index from Bind, and computes scores in Score.
//
// Invariants:
//  1. Index and query reduce words in the same way, so a term of the query finds the words it comes from.
//  2. A Query without an index matches nothing.
//  3. Stop words are known for English; other languages have stems only.
package text
