package soft

import (
	"fmt"
	"strings"
	"time"
)

// leftPatience is how long NewT waits for objects to be closed. Tests change it.
var leftPatience = 3 * time.Second

// TB is the part of [testing.TB] that [NewT] uses, so that programs do not import package testing.
//
// [testing.TB]: https://pkg.go.dev/testing#TB
type TB interface {
	Helper()
	Cleanup(func())
	Errorf(format string, args ...any)
	Fatalf(format string, args ...any)
}

// NewT makes a device for a test and closes it when the test ends. The test fails if the device cannot be
// made, if its trace or capture cannot be written, or if the test leaves objects of the device open; the
// message has their kinds and numbers. The check comes after the functions that the test registers with
// Cleanup later. Close all objects with uverbs.Device.CloseAll:
//
//	d, err := uverbs.Open(soft.NewT(t, soft.Options{}).Name(), uverbs.OpenOptions{})
//	defer d.CloseAll()
//
// Package cm keeps a device for a second after the last connection on it. So the check waits for objects
// to be closed, for up to three seconds.
func NewT(t TB, o Options) *Device {
	t.Helper()
	d, err := New(o)
	if err != nil {
		t.Fatalf("%v", err)
		return nil // if t is no test
	}
	t.Cleanup(func() {
		for end := time.Now().Add(leftPatience); d.Resources() != (ResourceCounts{}) && time.Now().Before(end); {
			time.Sleep(10 * time.Millisecond)
		}
		if left := d.Resources(); left != (ResourceCounts{}) {
			t.Errorf("soft: the test has left objects of device %s open: %s", d.Name(), left)
		}
		if err := d.Close(); err != nil {
			t.Errorf("%v", err)
		}
	})
	return d
}

// String lists the kinds of which there are objects, such as "1 context, 2 PDs", or returns "none".
func (r ResourceCounts) String() string {
	var all []string
	for _, k := range []struct {
		n    int
		kind string
	}{{r.Contexts, "context"}, {r.PDs, "PD"}, {r.MRs, "MR"}, {r.MWs, "MW"}, {r.CQs, "CQ"}, {r.QPs, "QP"}, {r.SRQs, "SRQ"}, {r.AHs, "AH"}} {
		switch k.n {
		case 0:
		case 1:
			all = append(all, "1 "+k.kind)
		default:
			all = append(all, fmt.Sprintf("%d %ss", k.n, k.kind))
		}
	}
	if all == nil {
		return "none"
	}
	return strings.Join(all, ", ")
}
