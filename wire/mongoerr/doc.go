// Package mongoerr is the one table of server errors: codes, names, labels, and their form in a reply.
package mongoerr
