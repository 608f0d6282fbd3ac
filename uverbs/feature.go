package uverbs

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"syscall"
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

// missing returns the error for a verb that the kernel reports as unknown or not supported. It says
// whether the kernel or the driver does not support it.
func (c *commands) missing(verb string, err *Error, running Version) *FeatureError {
	name, _, _ := strings.Cut(verb, " ") // "MODIFY_QP INIT to RTR" is MODIFY_QP
	f := &FeatureError{Feature: name, Err: err}
	driver := c.driver.name()
	known := features()[name]
	switch {
	case !absent(err.Errno):
		f.Driver = driver
	case err.Errno == syscall.ENOTTY && c.Path() == pathWrite:
		// Neither kernel nor driver refused it, so no version would help.
		if err.Hint == "" {
			err.Hint = "the command needs the ioctl interface, which " + abiPathEnv + "=write rules out"
		}
	case err.Errno == syscall.EPROTONOSUPPORT && known.hidden && slices.Compare(running[:], known.since[:]) >= 0:
		f.Driver = driver
	default:
		f.Since = known.since
	}
	return f
}

// noFeature is the error of a driver without a feature.
func noFeature(d *Device, name string) error {
	return &FeatureError{Feature: name, Driver: d.driver.name()}
}
