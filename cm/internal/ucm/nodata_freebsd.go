package ucm

import "syscall"

// errNoData is ENODATA, for which package uverbs uses the same errno of FreeBSD.
const errNoData = syscall.ENOATTR
