package softrig

import (
	"testing"

	"github.com/goverbs/goverbs/test/testenv"
	"github.com/goverbs/goverbs/uverbs"
	"github.com/goverbs/goverbs/uverbs/ib"
	"github.com/goverbs/goverbs/uverbs/soft"
)

// TestMake: with SoftSocketsEnv, the packets of the devices come through their sockets, also those that a
// device sends to itself. Without it, none do.
func TestMake(t *testing.T) {
	for value, min := range map[string]uint64{"": 0, "1": 1} {
		t.Run(testenv.SoftSocketsEnv+"="+value, func(t *testing.T) {
			t.Setenv(testenv.DevicesEnv, "soft0,soft1")
			t.Setenv(testenv.SoftSocketsEnv, value)
			closeAll, err := Make()
			if err != nil {
				t.Fatal(err)
			}
			defer func() {
				if err := closeAll(); err != nil {
					t.Error(err)
				}
			}()
			a, b := newEnd(t, "soft0"), newEnd(t, "soft1")
			send(t, a, b)
			received := func(name string) uint64 { return soft.ByName(name).Network().Received }
			if n := received("soft0"); n != min { // an ACK
				t.Errorf("the socket of the sender has received %d packets, want %d", n, min)
			}
			if n := received("soft1"); n != min {
				t.Errorf("the socket of the receiver has received %d packets, want %d", n, min)
			}
			send(t, newEnd(t, "soft0"), newEnd(t, "soft0"))
			if n := received("soft0"); n != 3*min {
				t.Errorf("the socket of a device that sends to itself has received %d packets, want %d", n-min, 2*min)
			}
		})
	}
}

// TestLossless: devices that are to lose packets, and lose none of many, are an error.
func TestLossless(t *testing.T) {
	t.Setenv(testenv.DevicesEnv, "soft0,soft1")
	closeAll, err := Make()
	check(t, err)
	defer func() { check(t, closeAll()) }()
	dev := soft.ByName("soft0")
	check(t, dev.SetFaults(soft.Faults{Rules: []soft.Rule{{Delay: soft.Delay{Min: 1}}}}))
	a, b := newEnd(t, "soft0"), newEnd(t, "soft1")
	for range 2600 { // a request and an acknowledgement each
		send(t, a, b)
		reset(t, a, b)
	}
	const loss = "loss=1%"
	if err := lossless([]*soft.Device{dev}, loss); err == nil {
		t.Error("no packet was lost, and that is no error")
	}
	check(t, lossless([]*soft.Device{dev}, "delay=1ns"))
	check(t, dev.SetFaults(soft.Faults{Seed: 1, Rules: []soft.Rule{{Loss: 5 * soft.Percent}}})) // all eight attempts of one of 200 messages fail once in 500,000 runs
	for range 200 {
		send(t, a, b)
		reset(t, a, b)
	}
	check(t, lossless([]*soft.Device{dev}, loss))
}

// end is a QP with what it needs.
type end struct {
	qp *uverbs.QP
	cq *uverbs.CQ
	mr *uverbs.MR
}

func newEnd(t *testing.T, name string) *end {
	t.Helper()
	dev, err := uverbs.Open(name, uverbs.OpenOptions{})
	check(t, err)
	pd, err := dev.AllocPD()
	check(t, err)
	buf, err := uverbs.AllocBuffer(4096, uverbs.BufferOptions{})
	check(t, err)
	e := &end{}
	e.mr, err = pd.RegMR(buf, uverbs.MROptions{Access: uverbs.AccessLocalWrite})
	check(t, err)
	e.cq, err = dev.CreateCQ(uverbs.CQOptions{Size: 4})
	check(t, err)
	e.qp, err = pd.CreateQP(uverbs.QPOptions{SendCQ: e.cq, RecvCQ: e.cq, Path: uverbs.PathOptions{RetryCount: 7}})
	check(t, err)
	t.Cleanup(func() {
		for _, c := range []interface{ Close() error }{e.qp, e.cq, e.mr, buf, pd, dev} {
			check(t, c.Close())
		}
	})
	return e
}

// send sends a message, and waits for both completions.
func send(t *testing.T, from, to *end) {
	t.Helper()
	check(t, from.qp.Init())
	check(t, to.qp.Init())
	a, err := from.qp.Endpoint()
	check(t, err)
	b, err := to.qp.Endpoint()
	check(t, err)
	check(t, from.qp.Connect(t.Context(), b))
	check(t, to.qp.Connect(t.Context(), a))
	check(t, to.qp.PostRecv(1, to.mr.SGE(0, 100)))
	check(t, from.qp.PostSend(uverbs.SendWR{ID: 2, Opcode: uverbs.WRSend, Flags: uverbs.SendSignaled, SGL: []uverbs.SGE{from.mr.SGE(0, 100)}}))
	for _, e := range []*end{to, from} {
		var wc [1]uverbs.WC
		for n := 0; n == 0; {
			n, err = e.cq.Poll(wc[:])
			check(t, err)
		}
		check(t, e.qp.Err(&wc[0]))
	}
}

// reset brings QPs into the state from which send begins.
func reset(t *testing.T, ends ...*end) {
	t.Helper()
	for _, e := range ends {
		check(t, e.qp.Modify(uverbs.QPAttr{State: ib.QPReset}, uverbs.AttrState))
	}
}

func check(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
