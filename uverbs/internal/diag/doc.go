// Package diag explains failures. Its functions take plain facts (numbers, strings and addresses) that
// package uverbs collects from its objects once something has failed, and return the text for the
// error, or "" if they know nothing. They hold no lock and keep no object alive. A few read state of
// the host: its routes, the limits of the process, the kernel's log.
package diag
