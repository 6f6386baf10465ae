// Package spill gives pipelines the temporary files that sorts use: a Dir makes them, Pipelines shows it to query/agg.
package spill
