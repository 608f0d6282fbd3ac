// Package conformance runs the verbs, one by one. In the VM that tools/vmrun boots its tests have a real kernel
// whose RDMA devices they may change, with rxe0 on ve0 and rxe1 on ve1. Elsewhere they run on software devices.
package conformance

import (
	"bytes"
	"context"
	_ "embed"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/goverbs/goverbs/test/softrig"
	"github.com/goverbs/goverbs/test/suites/conformance/report"
	"github.com/goverbs/goverbs/test/testenv"
	"github.com/goverbs/goverbs/uverbs"
	"github.com/goverbs/goverbs/uverbs/ib"
)

// lacking lists what kernels lack.
//
//go:embed lacking.txt
var lacking string

// lackingRxe lists what kernels, or rxe, lack in tests that are not for software devices.
//
//go:embed lacking_rxe.txt
var lackingRxe string

// lackingSiw lists what kernels, or soft iWARP, lack.
//
//go:embed lacking_siw.txt
var lackingSiw string

// lackingMLX5 lists what kernels, or ConnectX adapters, lack.
//
//go:embed lacking_mlx5.txt
var lackingMLX5 string

// lackingEFA lists what kernels, or EFA cards, do not have.
//
//go:embed lacking_efa.txt
var lackingEFA string

func TestMain(m *testing.M) {
	if report.Wanted(os.Args) {
		os.Exit(report.Main(os.Args[1:]))
	}
	os.Exit(runTests(m))
}

// runTests runs the tests, on software devices if the rig has such. It returns the exit status.
func runTests(m *testing.M) (code int) {
	if rig.Soft {
		closeAll, err := softrig.Make()
		if err != nil {
			fmt.Fprintln(os.Stderr, "software devices:", err)
			return 2
		}
		defer func() {
			if err := closeAll(); err != nil {
				fmt.Fprintln(os.Stderr, "software devices:", err)
				code = max(code, 1)
			}
		}()
	}
	return testenv.MainFor(m, map[string]string{"rxe": lacking + lackingRxe, "mlx5": lackingMLX5, "siw": lackingSiw, "efa": lackingEFA, "soft": lacking + lackingSoft})
}

// deviceName is the device that most tests use.
var deviceName = rig.Devices[0]

// rig is what this guest has to test with, and onMLX5 says that it is ConnectX.
var (
	rig    = testenv.TheRig()
	onMLX5 = rig.Driver == "mlx5"
)

// peerName is in messages about the peer on the first device. On InfiniBand it is empty.
var peerName = rig.Addrs[0]

// deadline bounds every wait of a test.
const deadline = 20 * time.Second

// eachPath runs a test of commands once for each interface to the kernel. Tests of memory, rings
// and the wire run once in a run of the suite, by the interface that RDMAABI names or the library
// chooses.
func eachPath(t *testing.T, test func(t *testing.T)) {
	testenv.Guest(t)
	for _, way := range testenv.Ways() {
		t.Run(way, func(t *testing.T) {
			t.Setenv("RDMAABI", way)
			if way == "write" && rig.EFA() {
				needsCQ(t)
			}
			test(t)
		})
	}
}

// needsCQ skips a test if the kernel creates no CQs by the interface that RDMAABI names.
func needsCQ(t *testing.T) {
	t.Helper()
	cq, err := openDevice(t, deviceName).CreateCQ(uverbs.CQOptions{})
	testenv.Skip(t, err)
	must(t, err)
	closeLater(t, cq)
}

// openDevice opens a device. That Close succeeds at the end of the test proves that no
// object of it was left.
func openDevice(t *testing.T, name string) *uverbs.Device {
	t.Helper()
	dev, err := uverbs.Open(name, uverbs.OpenOptions{})
	if err != nil {
		t.Fatal(err)
	}
	closeLater(t, dev)
	return dev
}

// closer is any object.
type closer interface{ Close() error }

// closeLater closes an object at the end of the test.
func closeLater(t *testing.T, c closer) {
	t.Helper()
	t.Cleanup(func() {
		if err := c.Close(); err != nil {
			t.Errorf("close %T: %v", c, err)
		}
	})
}

// side is one side of a connection.
type side struct {
	typ ib.QPType
	dev *uverbs.Device
	pd  *uverbs.PD
	buf *uverbs.Buffer
	mr  *uverbs.MR
	ch  *uverbs.CompChannel
	cq  *uverbs.CQ
	qp  *queuePair

	early []uverbs.WC // completions that came before the one that was wanted
}

// efaMTU is the longest message of an EFA card.
const efaMTU = 8928

// bufferSize is the size of a side's buffer.
const bufferSize = 64 << 10

// ipv4Index is where the guest's devices have the GID of their IPv4 address.
var ipv4Index = rig.GID

// testQKey is the Q_Key of UD queue pairs.
const testQKey = 0x11111111

// reliable is the type of QPs that the tests use if they do not say which.
var reliable = map[bool]ib.QPType{false: ib.RC, true: ib.SRD}[rig.EFA()]

// queuePair is the QP of a side. It has the address of its peer if it has no connection.
type queuePair struct {
	*uverbs.QP
	peer struct {
		ah        *uverbs.AH
		qpn, qkey uint32
	}
	empty []uverbs.SGE // for receives without memory, if they need some
}

// asSide makes a QP that has been created one of a side.
func asSide(qp *uverbs.QP, err error) (*queuePair, error) { return &queuePair{QP: qp}, err }

// meets tells the QP the address of its peer.
func (q *queuePair) meets(ah *uverbs.AH, peer *queuePair) {
	q.peer.ah, q.peer.qpn, q.peer.qkey = ah, peer.QPN(), testQKey
}

// addressed gives a work request the address of the peer, without a connection, unless the request names another.
func (q *queuePair) addressed(wr uverbs.SendWR) uverbs.SendWR {
	if q.peer.ah != nil && wr.AH == nil {
		wr.AH, wr.RemoteQPN, wr.RemoteQKey = q.peer.ah, q.peer.qpn, q.peer.qkey
	}
	return wr
}

// PostSend posts work requests, to the peer.
func (q *queuePair) PostSend(wrs ...uverbs.SendWR) error {
	if q.peer.ah != nil && slices.ContainsFunc(wrs, func(wr uverbs.SendWR) bool { return wr.AH == nil }) {
		wrs = slices.Clone(wrs)
		for i, wr := range wrs {
			wrs[i] = q.addressed(wr)
		}
	}
	return q.QP.PostSend(wrs...)
}

// PostRecv posts a receive.
func (q *queuePair) PostRecv(id uint64, sgl ...uverbs.SGE) error {
	if len(sgl) == 0 {
		sgl = q.empty
	}
	return q.QP.PostRecv(id, sgl...)
}

// noMemory returns what a receive without memory has: nothing, or on EFA, where it needs something, an SGE of 0 bytes.
func noMemory(t *testing.T, pd *uverbs.PD) []uverbs.SGE {
	t.Helper()
	var sgl []uverbs.SGE
	if rig.EFA() {
		mr, err := pd.RegMR(newBuffer(t, 1), uverbs.MROptions{Access: uverbs.AccessLocalWrite})
		must(t, err)
		closeLater(t, mr)
		sgl = append(sgl, mr.SGE(0, 0))
	}
	return sgl
}

// newSide makes a side on an open device, with its QP in state Init; one of type UD is
// ready.
func newSide(t *testing.T, dev *uverbs.Device, o uverbs.QPOptions) *side {
	t.Helper()
	if o.Type == ib.UC || o.Type == ib.UD {
		testenv.NeedsIB(t, "QP type "+o.Type.String())
		testenv.NeedsNoLoss(t, "UC and UD do not repeat what is lost")
	}
	return newLossySide(t, dev, o)
}

// newLossySide is newSide for a test that does not need each message of UC and UD to arrive.
func newLossySide(t *testing.T, dev *uverbs.Device, o uverbs.QPOptions) *side {
	t.Helper()
	if o.Type == 0 {
		o.Type = reliable
	} else if o.Type != ib.RC {
		testenv.NeedsIB(t, "QP type "+o.Type.String())
	}
	s := &side{dev: dev, typ: o.Type}
	var err error
	check := func(c closer) {
		t.Helper()
		must(t, err)
		closeLater(t, c)
	}
	s.pd, err = dev.AllocPD()
	check(s.pd)
	s.buf, err = uverbs.AllocBuffer(bufferSize, uverbs.BufferOptions{})
	check(s.buf)
	s.mr, err = s.pd.RegMR(s.buf, uverbs.MROptions{Access: rightsOnDevice(dev, allRights)})
	check(s.mr)
	s.ch, err = dev.CreateCompChannel()
	check(s.ch)
	s.cq, err = dev.CreateCQ(uverbs.CQOptions{Size: 256, Channel: s.ch})
	check(s.cq)
	o.SendCQ, o.RecvCQ = s.cq, s.cq
	if o.Path.GIDIndex == nil && os.Getenv("RDMAABI") == "write" {
		// Without the ioctl a GID table is a thousand files. TestChosenGID has one read.
		o.Path.GIDIndex = new(ipv4Index)
	}
	s.qp, err = asSide(s.pd.CreateQP(o))
	check(s.qp)
	if rig.EFA() {
		s.qp.empty = []uverbs.SGE{s.mr.SGE(0, 0)}
	}
	if o.Type == ib.UD {
		must(t, s.qp.ReadyUD(testQKey))
	} else {
		must(t, initQP(s.qp.QP))
	}
	return s
}

// rightsOnDevice leaves out rights of an MR that an EFA card does not have.
func rightsOnDevice(dev *uverbs.Device, rights uverbs.Access) uverbs.Access {
	attr, efa := dev.EFA()
	if efa {
		rights &= remoteRights
	}
	if efa && !attr.RDMARead {
		rights &^= uverbs.AccessRemoteRead
	}
	if efa && !attr.RDMAWrite {
		rights &^= uverbs.AccessRemoteWrite
	}
	return rights
}

// initQP moves a QP of type reliable to state Init. One that has no connection is ready then.
func initQP(qp *uverbs.QP) error {
	if reliable == ib.SRD {
		return qp.ReadyUD(testQKey)
	}
	return qp.Init()
}

// connect connects two sides. On EFA it tells each the address of the other.
func connect(t *testing.T, a, b *side) {
	t.Helper()
	switch {
	case rig.EFA():
		a.qp.meets(wayTo(t, a, b), b.qp)
		b.qp.meets(wayTo(t, b, a), a.qp)
	case rig.IWARP():
		joinIWARP(t, a.qp.QP, b.qp.QP, a.cq)
	default:
		ea, err := a.qp.Endpoint()
		must(t, err)
		eb, err := b.qp.EndpointFor(ea)
		must(t, err)
		must(t, errors.Join(a.qp.Connect(t.Context(), eb), b.qp.Connect(t.Context(), ea)))
	}
}

// TestChosenGID connects with the GID that the library chooses.
func TestChosenGID(t *testing.T) {
	testenv.NeedsIB(t, "GIDs")
	eachPath(t, func(t *testing.T) {
		testenv.NeedsRoCE(t, "Ethernet")
		dev := openDevice(t, deviceName)
		table, err := dev.GIDTable(1)
		must(t, err)
		want, ok := uverbs.ChooseGID(table, ib.GID{})
		if !ok || want.Index != ipv4Index {
			t.Fatalf("the library chooses %s, want index %d of %v", want, ipv4Index, table)
		}
		a := newSide(t, dev, uverbs.QPOptions{})
		qp, err := a.pd.CreateQP(uverbs.QPOptions{SendCQ: a.cq, RecvCQ: a.cq})
		must(t, err)
		closeLater(t, qp)
		local, err := qp.Endpoint()
		must(t, err)
		if local.GID != want.GID {
			t.Errorf("the endpoint has %s, want %s", local.GID, want.GID)
		}
		must(t, qp.Connect(t.Context(), local))
	})
}

// pair returns two connected sides on one device.
func pair(t *testing.T, o uverbs.QPOptions) (a, b *side) {
	t.Helper()
	dev := openDevice(t, deviceName)
	a, b = newSide(t, dev, o), newSide(t, dev, o)
	connect(t, a, b)
	return a, b
}

// next returns the next completion, whatever its status.
func (s *side) next(t *testing.T) uverbs.WC {
	t.Helper()
	var wc [1]uverbs.WC
	if n := copy(wc[:], s.early); n > 0 {
		s.early = s.early[n:]
		return wc[0]
	}
	for end, polls := time.Now().Add(deadline), 0; time.Now().Before(end); polls++ {
		n, err := s.cq.Poll(wc[:])
		must(t, err)
		if n == 1 {
			return wc[0]
		}
		if polls > 1000 { // it takes long: leave the processor to the device
			time.Sleep(100 * time.Microsecond)
		}
	}
	t.Fatalf("no completion within %s", deadline)
	return wc[0]
}

// reaches waits until the QP is in a state. rxe reports a failed request, to the program or to the peer, shortly
// before it changes the state.
func (s *side) reaches(t *testing.T, want ib.QPState) {
	t.Helper()
	for end := time.Now().Add(deadline); ; {
		attr, err := s.qp.Query()
		must(t, err)
		if attr.State == want {
			return
		}
		if time.Now().After(end) {
			t.Errorf("the QP is in state %s, want %s", attr.State, want)
			return
		}
		time.Sleep(time.Millisecond)
	}
}

// want polls for a completion and checks what it is. On EFA others may come before it.
func (s *side) want(t *testing.T, id uint64, op uverbs.WCOpcode) uverbs.WC {
	t.Helper()
	wc := s.next(t)
	var early []uverbs.WC
	for rig.EFA() && (wc.ID != id || wc.Opcode != op) && wc.Status == uverbs.WCSuccess {
		early = append(early, wc)
		wc = s.next(t)
	}
	s.early = append(early, s.early...)
	must(t, s.qp.Err(&wc))
	if wc.ID != id || wc.Opcode != op || wc.QPN != s.qp.QPN() {
		t.Fatalf("completion of %d (%s) on QP %d, want %d (%s) on QP %d", wc.ID, wc.Opcode, wc.QPN, id, op, s.qp.QPN())
	}
	return wc
}

// none makes sure that nothing completes for a while.
func (s *side) none(t *testing.T) {
	t.Helper()
	var wc [1]uverbs.WC
	if len(s.early) > 0 {
		t.Fatalf("unexpected completion %+v", s.early[0])
	}
	for end := time.Now().Add(50 * time.Millisecond); time.Now().Before(end); {
		if n, err := s.cq.Poll(wc[:]); n != 0 || err != nil {
			t.Fatalf("unexpected completion %+v, %v", wc[0], err)
		}
		time.Sleep(time.Millisecond)
	}
}

// fill writes a pattern into part of a side's buffer and returns it.
func (s *side) fill(offset, n int, seed byte) []byte {
	b := s.buf.Bytes()[offset : offset+n]
	for i := range b {
		b[i] = seed + byte(i) + byte(i>>8)
	}
	return b
}

// holds checks part of a side's buffer. On iWARP what is written comes later than the WRITE completes.
func (s *side) holds(t *testing.T, offset int, want []byte) {
	t.Helper()
	for end := time.Now().Add(deadline); !bytes.Equal(s.buf.Bytes()[offset:offset+len(want)], want); time.Sleep(time.Millisecond) {
		if !rig.IWARP() || time.Now().After(end) {
			t.Fatalf("the %d bytes at %d are not what was sent", len(want), offset)
		}
	}
}

// send is a signalled SEND.
func send(id uint64, sgl ...uverbs.SGE) uverbs.SendWR {
	return uverbs.SendWR{ID: id, Opcode: uverbs.WRSend, Flags: uverbs.SendSignaled, SGL: sgl}
}

// must fails a test on an error, or skips it if an EFA card does not have what it needs. It is no
// variable, so that its arguments stay on the stack.
func must(t testing.TB, errs ...error) {
	t.Helper()
	for _, err := range errs {
		if err != nil && rig.EFA() {
			testenv.Skip(t, cardLacks(err))
		}
	}
	testenv.Must(t, errs...)
}

// cardLacks is the error about an EFA card, or its driver, without a capability that others have, if
// that is why the library refused something, or nil.
func cardLacks(err error) error {
	var feature *uverbs.FeatureError
	if !errors.As(err, &feature) {
		return nil
	}
	for _, c := range []struct{ in, name string }{
		{"RDMA_WRITE", "RDMA WRITE"}, {"REMOTE_WRITE", "RDMA WRITE"}, {"RDMA_READ", "RDMA READ"}, {"REMOTE_READ", "RDMA READ"}, {"RNRRetry", "RNR retries"},
	} {
		if strings.Contains(feature.Feature, c.in) {
			return &uverbs.FeatureError{Feature: c.name, Driver: rig.Driver, Err: err}
		}
	}
	return nil
}

// argError checks that err is an ArgError about a field.
func argError(t *testing.T, err error, field string) *uverbs.ArgError {
	t.Helper()
	var arg *uverbs.ArgError
	if !errors.As(err, &arg) || arg.Field != field {
		t.Fatalf("error is %v, want an ArgError about %s", err, field)
	}
	return arg
}

// wrongField reports whether an error says that a field of a work request is wrong, with a text.
func wrongField(err error, field, text string) bool {
	var post *uverbs.PostError
	return errors.As(err, &post) && post.Field == field && strings.Contains(post.Err.Error(), text)
}

// withDeadline returns a context that ends before the test does.
func withDeadline(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), deadline)
	t.Cleanup(cancel)
	return ctx
}
