package kernel

import (
	"os"
	"regexp"
	"strconv"
	"testing"
)

// TestGrowDescriptors: the kernel's table of descriptors is as large as it should be, and none stays open.
func TestGrowDescriptors(t *testing.T) {
	open := func() int {
		files, err := os.ReadDir("/proc/self/fd")
		must(t, err)
		return len(files)
	}
	before := open()
	growDescriptors()
	if after := open(); after != before {
		t.Errorf("%d descriptors are open, were %d before", after, before)
	}
	status, err := os.ReadFile("/proc/self/status")
	must(t, err)
	size := regexp.MustCompile(`FDSize:\s+(\d+)`).FindSubmatch(status)
	if size == nil {
		t.Fatalf("no FDSize in /proc/self/status:\n%s", status)
	}
	if n, err := strconv.Atoi(string(size[1])); err != nil || n < descriptors {
		t.Errorf("there is room for %d descriptors, want at least %d", n, descriptors)
	}
}
