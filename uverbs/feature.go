package uverbs

import (
	"strconv"
	"strings"
	"sync"
	"syscall"

	"github.com/goverbs/goverbs/netlinkrdma"
	"github.com/goverbs/goverbs/uverbs/internal/kernel"
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

		"CREATE_COMP_CNTR":     {since: Version{7, 3}, hidden: true},
		"QUERY_COMP_CNTR_CAPS": {since: Version{7, 3}},

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
	major, rest, _ := strings.Cut(release, ".")
	minor := rest[:len(rest)-len(strings.TrimLeft(rest, "0123456789"))]
	first, err := strconv.Atoi(major)
	second, minorErr := strconv.Atoi(minor)
	if err != nil || minorErr != nil {
		return Version{}
	}
	return Version{first, second}
}

// sandbox returns the name of the sandbox, or "". Tests replace it.
var sandbox = netlinkrdma.Sandbox

// notOffered are the verbs whose methods gVisor does not have, or has without an attribute that the library always
// gives (buildSchemas in pkg/sentry/devices/rdmaproxy of gVisor). It answers them with EINVAL. It passes all other
// verbs on, so EINVAL of those is the kernel's.
var notOffered = []string{
	"CREATE_SRQ", "CREATE_WQ", "QUERY_MR", "ADVISE_MR", "ALLOC_DM", "REG_DM_MR", "QUERY_DM", "EXPORT_DMABUF", "ALLOC_DMAH",
	"CREATE_COUNTERS", "READ_COUNTERS", "QUERY_PORT_SPEED", "QUERY_CONTEXT", "INFO_HANDLES", "GET_DATA_DIRECT_SYSFS_PATH",
	"DEVX_OTHER", "DEVX_OBJ_MODIFY", "DEVX_OBJ_QUERY",
}

// nameOf returns the name at the beginning of a verb: "MODIFY_QP INIT to RTR" is MODIFY_QP.
func nameOf(verb string) string {
	name, _, _ := strings.Cut(verb, " ")
	return name
}

// absent reports whether an errno means that this kernel does not know the ioctl interface, the method or a mandatory
// attribute.
func absent(errno syscall.Errno) bool { return kernel.Absent(errno) }
