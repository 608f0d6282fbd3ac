package soft_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/goverbs/goverbs/uverbs"
	"github.com/goverbs/goverbs/uverbs/soft"
)

// recorder is a test that another test runs.
type recorder struct {
	cleanups []func()
	failures []string
}

func (r *recorder) Helper()          {}
func (r *recorder) Cleanup(f func()) { r.cleanups = append(r.cleanups, f) }
func (r *recorder) Errorf(format string, args ...any) {
	r.failures = append(r.failures, fmt.Sprintf(format, args...))
}
func (r *recorder) Fatalf(format string, args ...any) { r.Errorf(format, args...) }

// end ends the test.
func (r *recorder) end() {
	for _, f := range slices.Backward(r.cleanups) {
		f()
	}
}

// TestNewT: a test that closes everything passes, also if the device was removed before, and one that leaves objects
// fails with their kinds and numbers. Then the device is gone, and its name is free.
func TestNewT(t *testing.T) {
	for name, c := range map[string]struct {
		do   func(t *testing.T, dev *soft.Device, d *uverbs.Device)
		want string
	}{
		"clean":           {func(t *testing.T, _ *soft.Device, d *uverbs.Device) { ok(t, d.CloseAll()) }, ""},
		"removed, closed": {func(t *testing.T, dev *soft.Device, d *uverbs.Device) { ok(t, dev.Close(), d.CloseAll()) }, ""},
		"closed a moment later": {func(t *testing.T, _ *soft.Device, d *uverbs.Device) {
			soft.SetLeftPatience(t, time.Minute)
			time.AfterFunc(20*time.Millisecond, func() { d.CloseAll() })
		}, ""},
		"all left": {func(*testing.T, *soft.Device, *uverbs.Device) {}, "open: 1 context, 2 PDs, 1 CQ"},
		"context left": {func(t *testing.T, dev *soft.Device, d *uverbs.Device) {
			ok(t, d.CloseAll())
			_, err := uverbs.Open(dev.Name(), uverbs.OpenOptions{})
			ok(t, err)
		}, "open: 1 context"},
	} {
		t.Run(name, func(t *testing.T) {
			soft.SetLeftPatience(t, 0)
			var r recorder
			dev := soft.NewT(&r, soft.Options{Name: "newt"})
			d, err := uverbs.Open("newt", uverbs.OpenOptions{})
			ok(t, err)
			for range 2 {
				_, err := d.AllocPD()
				ok(t, err)
			}
			_, err = d.CreateCQ(uverbs.CQOptions{})
			ok(t, err)
			c.do(t, dev, d)
			r.end()
			if got := strings.Join(r.failures, "\n"); !strings.HasSuffix(got, c.want) || (got == "") != (c.want == "") {
				t.Errorf("the test fails with %q, want %q", got, c.want)
			}
			if soft.ByName("newt") != nil {
				t.Error("the device is still there")
			}
			ok(t, d.CloseAll())
		})
	}
	var r recorder
	soft.NewT(&r, soft.Options{MTU: 1})
	if r.end(); len(r.failures) != 1 || !strings.Contains(r.failures[0], "MTU") {
		t.Errorf("options that are not allowed: %q", r.failures)
	}
}
