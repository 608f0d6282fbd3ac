package main

import (
	"strings"
	"testing"
)

// TestVMNoLife: a kernel of Debian's that gives up before its init was heard of is booted once
// more, and only the messages of the second boot count.
func TestVMNoLife(t *testing.T) {
	needVM(t)
	r := vmrun(t, "", "-append", "rdinit=/none", self(t), "exit", "0")
	if n := strings.Count(r.Stderr, "trying again with tcg"); n != 1 {
		t.Errorf("it was tried again %d times", n)
	}
	if r.Status != statusKernel || !strings.Contains(r.Stderr, "Kernel panic") || !strings.Contains(r.Stderr, "before the guest's init was heard of") {
		t.Errorf("status %d, %s", r.Status, r.Stderr)
	}
}
