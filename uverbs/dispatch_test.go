package uverbs

import (
	"errors"
	"testing"

	"github.com/goverbs/goverbs/netlinkrdma"
	"github.com/goverbs/goverbs/uverbs/ib"
)

// dummyID is the kernel driver ID of dummyDriver.
const dummyID netlinkrdma.DriverID = 4711

// dummyDriver has the methods of driver that have no default, and no data path.
type dummyDriver struct{ baseDriver }

func (dummyDriver) kind() driverKind                         { return kindInvalid }
func (dummyDriver) name() string                             { return "dummy" }
func (dummyDriver) capabilities() capabilities               { return capabilities{} }
func (dummyDriver) abi() (uint64, uint64)                    { return 1, 2 }
func (dummyDriver) operations(t ib.QPType) (opcodeSet, bool) { return opcodes(WRSend), t == ib.RC }
func (dummyDriver) unsupportedQP(*QPOptions) string          { return "" }
func (dummyDriver) openAH(*AH, udata) error                  { return nil }
func (dummyDriver) prepareCQ(*CQ, *CQOptions) (udata, error) {
	return udata{out: make([]byte, 64)}, nil
}
func (dummyDriver) prepareQP(*QP, *qpSpec) (udata, error) { return udata{out: make([]byte, 64)}, nil }
func (dummyDriver) prepareSRQ(*SRQ, *SRQOptions) (udata, error) {
	return udata{out: make([]byte, 64)}, nil
}
func (dummyDriver) mapCQ(*CQ, udata) error                              { return nil }
func (dummyDriver) mapQP(*QP, udata) error                              { return nil }
func (dummyDriver) mapSRQ(*SRQ, udata) error                            { return nil }
func (dummyDriver) freeCQ(*CQ) error                                    { return nil }
func (dummyDriver) freeQP(*QP) error                                    { return nil }
func (dummyDriver) freeSRQ(*SRQ) error                                  { return nil }
func (dummyDriver) modifySRQ(_ *SRQ, _ bool, f func(udata) error) error { return f(udata{}) }

// TestDummyDriver: a driver needs an entry in the table of drivers and a type of its own, and no change
// to the generic files. Without cases in dispatch.go its queues take no work requests.
func TestDummyDriver(t *testing.T) {
	before := drivers
	t.Cleanup(func() { drivers = before })
	drivers = append(drivers[:len(drivers):len(drivers)], struct {
		id netlinkrdma.DriverID
		driver
	}{dummyID, dummyDriver{}})
	d, _, err := openFake(t, pathAuto, func(k *fakeKernel) { k.driver = driverOf(dummyID) })
	must(t, err)
	if d.Info().Driver != "dummy" {
		t.Errorf("the driver is %q, want dummy", d.Info().Driver)
	}
	pd, cq := value(d.AllocPD())(t), value(d.CreateCQ(CQOptions{Size: 7}))(t)
	srq := value(pd.CreateSRQ(SRQOptions{}))(t)
	qp := value(pd.CreateQP(QPOptions{SendCQ: cq, RecvCQ: cq}))(t)
	qp.state.Store(uint32(ib.QPRTS))
	_, poll := cq.Poll(make([]WC, 1))
	_, clock := d.ReadClock()
	_, td := d.AllocTD()
	for name, c := range map[string]struct{ err, want error }{
		"PostSend":     {qp.PostSend(SendWR{Opcode: WRSend}), errors.ErrUnsupported},
		"PostRecv":     {qp.PostRecv(1), errors.ErrUnsupported},
		"SRQ.PostRecv": {srq.PostRecv(1), errors.ErrUnsupported},
		"ReadClock":    {clock, errors.ErrUnsupported},
		"ring":         {qp.ring(1, 0), errors.ErrUnsupported},
		"AllocTD":      {td, errors.ErrUnsupported},
		"Resize":       {cq.Resize(15), errors.ErrUnsupported},
		"Poll":         {poll, ErrCQOverrun},
	} {
		if !errors.Is(c.err, c.want) {
			t.Errorf("%s: %v, want %v", name, c.err, c.want)
		}
	}
	must(t, qp.Close(), srq.Close(), cq.Close(), pd.Close())
}
