// Package compat runs programs of the two Go drivers against a server: MONGODB_URI says where.
package compat
