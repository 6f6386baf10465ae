// Command gen writes codes_gen.go from errors.json: a constant for each named code, the table of names and that of
// categories.
package main
