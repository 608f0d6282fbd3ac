package conformance

import (
	"errors"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/goverbs/goverbs/test/testenv"
	"github.com/goverbs/goverbs/uverbs"
)

// TestSharedXRCD: two that open a device share a domain by a file. The second opens the receiving end
// that the first has made, connects it, and gets messages in an SRQ of its own, also when the first
// has closed what it had.
func TestSharedXRCD(t *testing.T) {
	eachPath(t, func(t *testing.T) {
		testenv.Needs(t, "XRC", "mlx5")
		f, err := os.Create(filepath.Join(t.TempDir(), "domain"))
		must(t, err)
		defer f.Close()
		one, two := openDevice(t, deviceName), openDevice(t, deviceName)
		if _, err := one.OpenXRCD(uverbs.XRCDOptions{File: f}); !errors.Is(err, syscall.EAGAIN) {
			t.Errorf("a file without a domain: %v, want EAGAIN", err)
		}
		first, err := one.OpenXRCD(uverbs.XRCDOptions{File: f, Flags: os.O_CREATE | os.O_EXCL})
		must(t, err)
		closeLater(t, first)
		if _, err := two.OpenXRCD(uverbs.XRCDOptions{File: f, Flags: os.O_CREATE | os.O_EXCL}); !errors.Is(err, syscall.EINVAL) {
			t.Errorf("a file with a domain, and O_EXCL: %v, want EINVAL", err)
		}
		second, err := two.OpenXRCD(uverbs.XRCDOptions{File: f})
		must(t, err)
		closeLater(t, second)

		a, b := newSide(t, one, uverbs.QPOptions{}), newSide(t, two, uverbs.QPOptions{})
		sender, err := a.pd.CreateQP(uverbs.QPOptions{Type: uverbs.XRCSend, SendCQ: a.cq, Path: uverbs.PathOptions{GID: uverbs.GIDAt(ipv4Index)}})
		must(t, err)
		closeLater(t, sender)
		made, err := first.CreateQP(uverbs.PathOptions{GID: uverbs.GIDAt(ipv4Index)})
		must(t, err)
		closeLater(t, made)
		if _, err := second.OpenQP(sender.QPN()); !errors.Is(err, syscall.EINVAL) {
			t.Errorf("OpenQP of a QP that is none of the domain: %v, want EINVAL", err)
		}
		es, err := sender.Endpoint()
		must(t, err)
		er, err := made.Endpoint()
		must(t, err)
		must(t, sender.Connect(t.Context(), er), made.Connect(t.Context(), es))
		opened, err := second.OpenQP(made.QPN())
		must(t, err)
		closeLater(t, opened)
		if opened.QPN() != made.QPN() || opened.State() != uverbs.QPRTS {
			t.Errorf("the QP that was opened is %d in %s, want %d in RTS", opened.QPN(), opened.State(), made.QPN())
		}
		srq, err := b.pd.CreateSRQ(uverbs.SRQOptions{MaxWR: 8, XRCD: second, CQ: b.cq})
		must(t, err)
		closeLater(t, srq)
		for i := range uint64(2) {
			want := a.fill(0, 300, byte(i+1))
			must(t, srq.PostRecv(10+i, b.mr.SGE(0, 300)))
			wr := send(i, a.mr.SGE(0, 300))
			wr.RemoteSRQN = srq.SRQN()
			must(t, sender.PostSend(wr))
			if wc := a.next(t); wc.ID != i || wc.Err() != nil {
				t.Fatalf("message %d: %v", i, sender.Err(&wc))
			}
			if wc := b.next(t); wc.ID != 10+i || wc.Err() != nil || wc.QPN != opened.QPN() {
				t.Errorf("message %d: completion %+v", i, wc)
			}
			b.holds(t, 0, want)
			must(t, made.Close(), first.Close()) // the second still has the QP
		}
	})
}
