// Package spill provides pipelines with the temporary files that sorts use: a Dir creates them, Pipelines adapts it to query/agg.
package spill
