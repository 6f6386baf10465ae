// Package compat runs programs of the two Go drivers against the server at MONGODB_URI.
package compat
