//go:build !cgo || !linux

package main

// boundMalloc does nothing: in a build without cgo the block cache is in Go's heap.
func boundMalloc() (stop func()) { return func() {} }
