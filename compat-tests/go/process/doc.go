// Package process runs bin/shoal as its operators do (start, kill, restart, several processes of one cluster) and examines
// it with the driver. SHOAL names the binary.
package process
