// Package storetest damages the files of stores, for the tests of those who must notice.
package storetest
