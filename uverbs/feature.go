package uverbs

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"syscall"

	"github.com/goverbs/goverbs/netlinkrdma"
)

// feature describes a verb that a kernel or a driver may not support.
type feature struct {
	since Version // the first mainline kernel that has it; zero if Linux 5.10 has it

	// hidden verbs have an ioctl method that the kernel removes for devices whose driver does not
	// implement it. Its answer is then that of a kernel without the method (uapi_finalize_disable
	// in uverbs_uapi.c).
	hidden bool
}

// features are the verbs that are newer than Linux 5.10 or hidden, by name. The version is the
// kernel release that added the method.
var features = sync.OnceValue(func() map[string]feature {
	return map[string]feature{
		"REG_DMABUF_MR":    {since: Version{5, 12}},
		"REG_MR_EX":        {since: Version{6, 17}}, // UVERBS_METHOD_REG_MR; REG_MR is the legacy command
		"ALLOC_DMAH":       {since: Version{6, 17}, hidden: true},
		"DEALLOC_DMAH":     {since: Version{6, 17}, hidden: true},
		"QUERY_PORT_SPEED": {since: Version{7, 0}},
		"ALLOC_DMABUF":     {since: Version{7, 0}, hidden: true},

		"DEVX_OTHER":      {hidden: true},
		"DEVX_OBJ_MODIFY": {hidden: true},
		"DEVX_OBJ_QUERY":  {hidden: true},

		"ALLOC_DM":         {hidden: true},
		"FREE_DM":          {hidden: true},
		"REG_DM_MR":        {hidden: true},
		"CREATE_COUNTERS":  {hidden: true},
		"READ_COUNTERS":    {hidden: true},
		"DESTROY_COUNTERS": {hidden: true},
	}
})

// runningKernel returns the version of the running kernel, or zero if it is unknown.
var runningKernel = sync.OnceValue(func() Version {
	if netlinkrdma.Sandbox() != "" { // its release says nothing
		return Version{}
	}
	return parseRelease(kernelRelease())
})

// parseRelease returns the version at the start of a kernel's release.
func parseRelease(release string) Version {
	var v Version
	if n, _ := fmt.Sscanf(release, "%d.%d", &v[0], &v[1]); n != 2 {
		return Version{}
	}
	return v
}

// sandbox returns the name of the sandbox, or "". Tests replace it.
var sandbox = netlinkrdma.Sandbox

// passedOn are the commands that gVisor passes on to the kernel as they are, which answers EINVAL to wrong arguments.
var passedOn = []string{"GET_CONTEXT", "QUERY_PORT", "REG_MR", "CREATE_AH", "CREATE_CQ", "CREATE_QP", "MODIFY_QP", "QUERY_QP"}

// notOffered reports whether an errno says that a sandbox does not offer a command, whose name is at the beginning of verb.
func notOffered(verb string, errno syscall.Errno) bool {
	name, _, _ := strings.Cut(verb, " ")
	return (errno == syscall.EINVAL || errno == syscall.EBADF || errno == syscall.EFAULT) && !slices.Contains(passedOn, name)
}
