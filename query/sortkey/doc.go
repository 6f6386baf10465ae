// Package sortkey compiles sort specifications, and extracts and compares the sort keys of documents.
//
// A key is one value per part. A part that leads through an array takes the element that comes first in the part's
// direction; if several parts lead through one array, whole keys are made per element and the first of them counts.
package sortkey
