package conformance

import (
	"encoding/binary"
	"errors"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/goverbs/goverbs/test/testenv"
	"github.com/goverbs/goverbs/uverbs"
	"github.com/goverbs/goverbs/uverbs/ib"
	"github.com/goverbs/goverbs/uverbs/mlx5"
)

// Commands of the firmware, and where fields are: cmd_hca_cap_bits and qpc_bits of mlx5_ifc.h.
const (
	opQueryHCACap = 0x100
	opCreateQP    = 0x500
	opRTR2RTSQP   = 0x504
	opRTS2RTSQP   = 0x505
	opQueryQP     = 0x50b

	capsAt    = 16 // of the answer to QUERY_HCA_CAP
	capsSize  = capsAt + 4096
	logMaxCQE = capsAt + 0xc8/8
	qpcAt     = 0xc0 / 8 // of the answer to QUERY_QP, and in RTS2RTS_QP
	qpcRemote = qpcAt + 0xa0/8
	qpcSport  = qpcAt + 0xc0/8 + 0x110/8
	qpcSize   = 0x880 / 8
)

// firmware returns a command about the object with a number.
func firmware(op uint16, number uint32, size int) []byte {
	b := make([]byte, size)
	binary.BigEndian.PutUint16(b, op)
	binary.BigEndian.PutUint32(b[8:], number)
	return b
}

// openDEVX opens a device for commands to the firmware, or skips the test.
func openDEVX(t *testing.T) *uverbs.Device {
	t.Helper()
	dev, err := uverbs.Open(deviceName, uverbs.OpenOptions{DEVX: true})
	testenv.Skip(t, err)
	must(t, err)
	closeLater(t, dev)
	return dev
}

// queryQP returns what the firmware says about a QP.
func queryQP(t *testing.T, q *uverbs.QP) []byte {
	t.Helper()
	out := make([]byte, qpcSize)
	must(t, mlx5.DEVXQuery(q, firmware(opQueryQP, q.QPN(), 16), out))
	return out
}

// TestDEVX gives commands to the firmware: those that the kernel permits and the firmware carries out, those
// that the firmware refuses, and those that the kernel does.
func TestDEVX(t *testing.T) {
	testenv.Tags(t, testenv.SpecialCard)
	eachPath(t, func(t *testing.T) {
		testenv.Needs(t, "DEVX", "mlx5")
		dev := openDEVX(t)
		in := firmware(opQueryHCACap, 0, 16)
		in[7] = 1 // the general capabilities in force
		out := make([]byte, capsSize)
		must(t, mlx5.DEVXCommand(dev, in, out))
		if want := dev.Attr().MaxCQE; 1<<out[logMaxCQE]-1 != int(want) {
			t.Errorf("the firmware has CQs of 1<<%d, the kernel of %d", out[logMaxCQE], want)
		}
		in[6], in[7] = 1, 0xff // a kind of capabilities that is not there
		firmwareRefuses(t, mlx5.DEVXCommand(dev, in, out), opQueryHCACap, "QUERY_HCA_CAP")
		var firm *mlx5.FirmwareError
		if err := mlx5.DEVXCommand(dev, firmware(opCreateQP, 0, 64), out); !errors.Is(err, syscall.EINVAL) || errors.As(err, &firm) {
			t.Errorf("CREATE_QP: %v, want EINVAL of the kernel", err)
		}
		argError(t, mlx5.DEVXCommand(dev, in[:15], out), "length of in")
		argError(t, mlx5.DEVXCommand(dev, in, make([]byte, 1<<16)), "length of out")

		a, b := newSide(t, dev, uverbs.QPOptions{}), newSide(t, dev, uverbs.QPOptions{})
		connect(t, a, b)
		q := queryQP(t, a.qp.QP)
		if remote := binary.BigEndian.Uint32(q[qpcRemote:]) & 0xffffff; q[qpcAt]>>4 != byte(ib.QPRTS) || remote != b.qp.QPN() {
			t.Errorf("the firmware says state %d and peer %#x, want RTS and %#x", q[qpcAt]>>4, remote, b.qp.QPN())
		}
		out = out[:qpcSize]
		must(t, mlx5.DEVXModify(a.qp.QP, firmware(opRTS2RTSQP, a.qp.QPN(), qpcSize), out))
		for name, err := range map[string]error{
			"query of another QP":        mlx5.DEVXQuery(a.qp.QP, firmware(opQueryQP, b.qp.QPN(), 16), out),
			"query by DEVXModify":        mlx5.DEVXModify(a.qp.QP, firmware(opQueryQP, a.qp.QPN(), 16), out),
			"modification by DEVXQuery":  mlx5.DEVXQuery(a.qp.QP, firmware(opRTS2RTSQP, a.qp.QPN(), qpcSize), out),
			"query of the QP by command": mlx5.DEVXCommand(dev, firmware(opQueryQP, a.qp.QPN(), 16), out),
		} {
			if !errors.Is(err, syscall.EINVAL) || errors.As(err, &firm) {
				t.Errorf("%s: %v, want EINVAL of the kernel", name, err)
			}
		}
		wrong := firmware(opRTS2RTSQP, a.qp.QPN(), qpcSize)
		wrong[16] = 0x80 // of opt_param_mask, which has no such bit
		firmwareRefuses(t, mlx5.DEVXModify(a.qp.QP, wrong, out), opRTS2RTSQP, "RTS2RTS_QP")
		argError(t, mlx5.DEVXModify(a.qp.QP, firmware(opRTR2RTSQP, a.qp.QPN(), qpcSize), out), "command")
		eceTraffic(t, a, b)

		plain := openDevice(t, deviceName)
		var feature *uverbs.FeatureError
		if err := mlx5.DEVXCommand(plain, in, out); !errors.As(err, &feature) || feature.Feature != "DEVX" {
			t.Errorf("a device that was opened without: %v, want a FeatureError", err)
		}
	})
}

// firmwareRefuses checks the error of a command that the firmware has refused. Kernels before Linux 5.18 do
// not pass its answer on.
func firmwareRefuses(t *testing.T, err error, op uint16, name string) {
	t.Helper()
	k := testenv.Kernel(t)
	var firm *mlx5.FirmwareError
	var e *uverbs.Error
	if !errors.As(err, &e) {
		t.Errorf("%s: %v, want an Error", name, err)
	}
	passed := slices.Compare(k[:], []int{5, 18}) >= 0
	if errors.As(err, &firm) != passed || passed && (firm.Opcode != op || firm.Status == 0 || firm.Syndrome == 0 || !strings.Contains(err.Error(), "refused "+name+": bad")) {
		t.Errorf("%s: %v (%+v), want a FirmwareError with its syndrome", name, err, firm)
	}
}

// TestUDPSourcePort gives QPs source ports, which the firmware has afterwards. Test TestSourcePort of
// test/suites/softrxe sees them in packets.
func TestUDPSourcePort(t *testing.T) {
	testenv.Tags(t, testenv.SpecialCard)
	eachPath(t, func(t *testing.T) {
		testenv.Needs(t, "DEVX", "mlx5")
		for _, typ := range []ib.QPType{ib.RC, ib.UC} {
			dev := openDEVX(t)
			a, b := newSide(t, dev, uverbs.QPOptions{Type: typ}), newSide(t, dev, uverbs.QPOptions{Type: typ})
			argError(t, mlx5.SetUDPSourcePort(a.qp.QP, 0xd903), "state")
			connect(t, a, b)
			err := mlx5.SetUDPSourcePort(a.qp.QP, 0xd903)
			testenv.Skip(t, err)
			must(t, err)
			for _, port := range []uint16{0xd903, 0xffff, 0xc000} {
				must(t, mlx5.SetUDPSourcePort(a.qp.QP, port))
				if got := binary.BigEndian.Uint16(queryQP(t, a.qp.QP)[qpcSport:]); got != port {
					t.Errorf("%s: the firmware has the source port %#x, want %#x", typ, got, port)
				}
				eceTraffic(t, a, b)
			}
			argError(t, mlx5.SetUDPSourcePort(a.qp.QP, 0xbfff), "port")
		}
		s := newSide(t, openDEVX(t), uverbs.QPOptions{Type: ib.UD})
		argError(t, mlx5.SetUDPSourcePort(s.qp.QP, 0xc000), "QP type")
	})
}

// TestLAG has QPs send by the ports of a LAG. On a device without one, the error says so.
func TestLAG(t *testing.T) {
	testenv.Tags(t, testenv.SpecialCard)
	eachPath(t, func(t *testing.T) {
		t.Setenv("RDMADEVX", "1")
		dev := openDevice(t, deviceName)
		lag, err := mlx5.QueryLAG(dev)
		if errors.Is(err, errors.ErrUnsupported) {
			noLAG(t, dev, err)
			return
		}
		must(t, err)
		if testenv.Modelled() && lag != (mlx5.LAG{Ports: 2, Active: true, SendsBy: [2]uint8{1, 2}}) {
			t.Errorf("the LAG is %+v", lag)
		}
		a, b := newSide(t, dev, uverbs.QPOptions{}), newSide(t, dev, uverbs.QPOptions{})
		argError(t, mlx5.SetLAGPort(a.qp.QP, 1), "state")
		connect(t, a, b)
		u := newSide(t, dev, uverbs.QPOptions{Type: ib.UD})
		for typ, q := range map[ib.QPType]*uverbs.QP{ib.RC: a.qp.QP, ib.UD: u.qp.QP, ib.RawPacket: rawSender(t, u)} {
			first, err := mlx5.QueryLAGPort(q)
			must(t, err)
			if testenv.Modelled() && typ != ib.RawPacket && (first.Port < 1 || first.Port > 2) {
				t.Errorf("%s: the kernel has given the port %d", typ, first.Port)
			}
			for _, port := range []uint8{2, 1} {
				must(t, mlx5.SetLAGPort(q, port))
				p, err := mlx5.QueryLAGPort(q)
				if want := (mlx5.LAGPort{Port: port, Active: lag.SendsBy[port-1]}); err != nil || p != want {
					t.Errorf("%s: port %+v, %v, want %+v", typ, p, err, want)
				}
			}
			argError(t, mlx5.SetLAGPort(q, 0), "port")
			argError(t, mlx5.SetLAGPort(q, uint8(lag.Ports)+1), "port")
		}
		eceTraffic(t, a, b)
	})
}

// rawSender returns a QP for raw packets.
func rawSender(t *testing.T, s *side) *uverbs.QP {
	t.Helper()
	q, err := s.pd.CreateQP(uverbs.QPOptions{Type: ib.RawPacket, SendCQ: s.cq, RecvCQ: s.cq, MaxSendWR: 8})
	must(t, err)
	closeLater(t, q)
	return q
}

// noLAG checks the errors of a device without a LAG.
func noLAG(t *testing.T, dev *uverbs.Device, err error) {
	t.Helper()
	ioctl := !strings.HasSuffix(t.Name(), "/write")
	devx := ioctl && testenv.CardIs("devx")
	if testenv.CardIs("lag") && devx && !rig.InfiniBand() {
		t.Errorf("the card has a LAG: %v", err)
	}
	if testenv.Modelled() && devx && !strings.Contains(err.Error(), "num_lag_ports") {
		t.Errorf("%v does not name the capability", err)
	}
	q := newSide(t, dev, uverbs.QPOptions{}).qp
	errorIs(t, errorOf(mlx5.QueryLAGPort(q.QP)), errors.ErrUnsupported, "LAGPort")
	errorIs(t, mlx5.SetLAGPort(q.QP, 1), errors.ErrUnsupported, "SetLAGPort")
}
