package main

import (
	"encoding/json"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// TestCDIDevice: what a container may ask for is JSON of the form that container engines read.
func TestCDIDevice(t *testing.T) {
	var got any
	if err := json.Unmarshal([]byte(cdiDevice("all", "/dev/infiniband/uverbs0", "/dev/infiniband/uverbs1")), &got); err != nil {
		t.Fatal(err)
	}
	node := func(path string) any { return map[string]any{"path": path} }
	want := map[string]any{"name": "all", "containerEdits": map[string]any{
		"deviceNodes": []any{node("/dev/infiniband/uverbs0"), node("/dev/infiniband/uverbs1")}}}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}
