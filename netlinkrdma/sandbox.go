package netlinkrdma

import (
	"strings"
	"sync"
)

// Sandbox returns the name of the sandbox in which this process runs, "gVisor", or "". A sandbox answers system
// calls itself, and passes on only some commands of RDMA. The release of its kernel does not say which.
func Sandbox() string { return sandbox() }

// sandbox is Sandbox. Tests replace it.
var sandbox = findSandbox

// found is the result of findSandbox. A sync.OnceValue would allocate memory at the start of every program.
var found struct {
	once sync.Once
	name string
}

// findSandbox asks the kernel once.
func findSandbox() string {
	found.once.Do(func() { found.name = sandboxOf(kernelRelease()) })
	return found.name
}

// sandboxOf recognises a sandbox by the release of its kernel, such as "5.15.0-gvisor".
func sandboxOf(release string) string {
	if strings.HasSuffix(release, "-gvisor") {
		return "gVisor"
	}
	return ""
}

// unlessSandboxed returns a hint that does not help in a sandbox, or what helps there.
func unlessSandboxed(hint string) string {
	if s := sandbox(); s != "" {
		return "the sandbox " + s + " does not offer it"
	}
	return hint
}
