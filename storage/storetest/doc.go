// Package storetest damages the files of stores, for tests of the code that must detect the damage.
package storetest
