// Package text is full-text search: what of a document a text index holds, and which documents a $text query wants.
//
// A document's strings under the index's paths are cut into words (words), folded in case and diacritics, stripped of stop
// words and reduced to their stems: Index.Scores gives the terms and their scores, which are the keys of the index. A query
// is read by ParseQuery, learns from Bind which index it runs over, and answers Score.
//
// Invariants:
//  1. Index and query reduce words in the same way, so a term of the query finds the words it comes from.
//  2. A Query without an index matches nothing.
//  3. Stop words are known for English; other languages have stems only.
package text
