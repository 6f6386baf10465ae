//go:build !linux

package main

// awaitStopped does not wait: there is no portable way to ask.
func awaitStopped(int) {}
