// Command sbom prints the components of a Go binary as an SPDX 2.3 document: the modules that the Go toolchain records in each
// binary it links, and the checksum of the binary itself.
//
//	sbom BINARY NAME VERSION >sbom.spdx.json
//
// Source: https://spdx.github.io/spdx-spec/v2.3/
package main
