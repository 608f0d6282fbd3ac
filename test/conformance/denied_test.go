package conformance

import (
	"errors"
	"os"
	"runtime"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/goverbs/goverbs/uverbs"
)

// TestOtherCredentials: a thread that has changed its user since the device was opened may
// not write() to it. The error says so, and how to do without; an ioctl is not refused.
func TestOtherCredentials(t *testing.T) {
	eachPath(t, func(t *testing.T) {
		dev := openDevice(t, deviceName)
		type result struct {
			pd  *uverbs.PD
			err error
		}
		done := make(chan result)
		go func() {
			runtime.LockOSThread() // for good: the thread ends with the goroutine
			if err := unix.Setfsuid(nobody); err != nil {
				done <- result{err: err}
				return
			}
			pd, err := dev.AllocPD()
			done <- result{pd, err}
		}()
		r := <-done
		if os.Getenv("RDMAABI") != "write" {
			must(t, r.err, r.pd.Close())
			return
		}
		if !errors.Is(r.err, syscall.EACCES) {
			t.Fatalf("error is %v, want EACCES", r.err)
		}
		says(t, r.err, "permission denied", "other credentials", "RDMAABI=ioctl")
	})
}
