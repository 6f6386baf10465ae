// Package valuetest makes documents for tests from extended JSON.
package valuetest
