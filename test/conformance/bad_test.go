package conformance

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/goverbs/goverbs/netlinkrdma"
	"github.com/goverbs/goverbs/test/testenv"
	"github.com/goverbs/goverbs/uverbs"
)

// says checks that an error's text holds all of the words.
func says(t *testing.T, err error, words ...string) {
	t.Helper()
	if err == nil {
		t.Fatalf("no error, want one that says %q", words)
	}
	for _, w := range words {
		if !strings.Contains(err.Error(), w) {
			t.Errorf("error %q does not say %q", err, w)
		}
	}
}

// saysNot checks what an error must not say.
func saysNot(t *testing.T, err error, words ...string) {
	t.Helper()
	for _, w := range words {
		if strings.Contains(err.Error(), w) {
			t.Errorf("error %q says %q", err, w)
		}
	}
}

func TestUnknownDevice(t *testing.T) {
	testenv.Guest(t)
	_, err := uverbs.Open("rxe99")
	says(t, err, "rxe99", rig.Devices[0], rig.Devices[1])
	if !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("%v is not fs.ErrNotExist", err)
	}
}

func TestNoDevice(t *testing.T) {
	testenv.Guest(t)
	testenv.NeedsLinks(t)
	for _, l := range links {
		must(t, netlinkrdma.DeleteLink(l.name))
		t.Cleanup(func() { addLink(t, l.name, l.netdev) })
	}
	_, err := uverbs.OpenFirst()
	says(t, err, "no RDMA device", "rdma link add")
	if !errors.Is(err, uverbs.ErrNoDevice) {
		t.Errorf("%v is not ErrNoDevice", err)
	}
	_, err = uverbs.Open("rxe0")
	if !errors.Is(err, uverbs.ErrNoDevice) {
		t.Errorf("%v is not ErrNoDevice", err)
	}
	must(t, netlinkrdma.SetNetNSMode(netlinkrdma.NetNSExclusive))
	t.Cleanup(func() { must(t, netlinkrdma.SetNetNSMode(netlinkrdma.NetNSShared)) })
	_, err = uverbs.Open("rxe0")
	says(t, err, "no RDMA device", "netns mode is exclusive", "rdma dev set DEV netns NS")
}

// links are the RDMA links of the VM.
var links = []struct{ name, netdev string }{{"rxe0", rig.Netdevs[0]}, {"rxe1", rig.Netdevs[1]}}

// addLink adds an rxe link and waits until its GIDs are there.
func addLink(t *testing.T, name, netdev string) {
	t.Helper()
	if err := netlinkrdma.AddLink(name, "rxe", netdev); err != nil {
		t.Fatal(err)
	}
	for end := time.Now().Add(deadline); time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
		dev, err := uverbs.Open(name)
		if err != nil {
			continue
		}
		table, err := dev.GIDTable(1)
		dev.Close()
		if e, ok := uverbs.ChooseGID(table, uverbs.GID{}); err == nil && ok && e.GID.Addr().Is4() {
			return
		}
	}
	t.Fatalf("%s has no IPv4 GID after %s", name, deadline)
}

// TestModuleNotLoaded runs in a VM of its own, which has no RDMA module loaded.
func TestModuleNotLoaded(t *testing.T) {
	testenv.Boot(t, bareEnv, "rxe/bare")
	_, err := uverbs.OpenFirst()
	says(t, err, "modprobe")
	_, err = uverbs.Devices()
	if err == nil {
		_, err = uverbs.Open("rxe0")
	}
	says(t, err, "modprobe")
}

// bareEnv is set to 1 in the VM without RDMA modules.
const bareEnv = "GOVERBS_BARE"

// childEnv makes the test binary run as the child of a test.
const childEnv = "GOVERBS_CHILD"

// nobody is an unprivileged user.
const nobody = 65534

// runChild runs one test of this binary as an unprivileged user.
func runChild(t *testing.T, test string) {
	t.Helper()
	cmd := exec.Command("/proc/self/exe", "-test.run", "^"+test+"$", "-test.v")
	cmd.Env = append(os.Environ(), childEnv+"=1")
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: nobody, Gid: nobody}}
	out, err := cmd.CombinedOutput()
	if err != nil || !strings.Contains(string(out), "--- PASS: "+test) {
		t.Fatalf("as user %d: %v\n%s", nobody, err, out)
	}
}

func isChild() bool { return os.Getenv(childEnv) == "1" }

// setMode changes the mode of rxe0's character device until the end of the test.
func setMode(t *testing.T, mode fs.FileMode) {
	t.Helper()
	infos, err := uverbs.Devices()
	must(t, err)
	for _, d := range infos {
		if d.Name != deviceName {
			continue
		}
		st, err := os.Stat(d.CharDev)
		must(t, err, os.Chmod(d.CharDev, mode))
		t.Cleanup(func() { must(t, os.Chmod(d.CharDev, st.Mode().Perm())) })
		return
	}
	t.Fatalf("%s is not listed", deviceName)
}

func TestPermission(t *testing.T) {
	testenv.Guest(t)
	if !isChild() {
		setMode(t, 0o600)
		runChild(t, "TestPermission")
		return
	}
	_, err := uverbs.Open(deviceName)
	says(t, err, deviceName, "/dev/infiniband/uverbs", "-rw-------", "user 65534")
	if !errors.Is(err, fs.ErrPermission) {
		t.Errorf("%v is not fs.ErrPermission", err)
	}
	infos, err := uverbs.Devices()
	must(t, err)
	for _, d := range infos {
		if d.Name == deviceName && !errors.Is(d.Err, fs.ErrPermission) {
			t.Errorf("Devices lists %s with %v, want fs.ErrPermission", d.Name, d.Err)
		}
	}
}

func TestMemlock(t *testing.T) {
	testenv.Guest(t)
	if !isChild() {
		setMode(t, 0o666)
		runChild(t, "TestMemlock")
		return
	}
	const limit = 64 << 10 // what every kernel allows at least
	must(t, unix.Setrlimit(unix.RLIMIT_MEMLOCK, &unix.Rlimit{Cur: limit, Max: limit}))
	dev := openDevice(t, deviceName)
	pd, err := dev.AllocPD()
	must(t, err)
	closeLater(t, pd)
	small, err := uverbs.AllocBuffer(16 << 10)
	must(t, err)
	closeLater(t, small)
	mr, err := pd.RegMR(small, uverbs.AccessLocalWrite)
	must(t, err)
	closeLater(t, mr)
	big, err := uverbs.AllocBuffer(1 << 20)
	must(t, err)
	closeLater(t, big)
	_, err = pd.RegMR(big, uverbs.AccessLocalWrite)
	if !errors.Is(err, syscall.ENOMEM) {
		t.Fatalf("%v is not ENOMEM", err)
	}
	says(t, err, "REG_MR", strconv.Itoa(1<<20), "RLIMIT_MEMLOCK is "+strconv.Itoa(limit), strconv.Itoa(16<<10)+" pinned", "ulimit -l", "CAP_IPC_LOCK")
}

// setLink sets a network interface up or down and waits until the port follows.
func setLink(t *testing.T, dev *uverbs.Device, netdev string, up bool) {
	t.Helper()
	link, err := netlink.LinkByName(netdev)
	must(t, err)
	state, set := uverbs.PortDown, netlink.LinkSetDown
	if up {
		state, set = uverbs.PortActive, netlink.LinkSetUp
	}
	must(t, set(link))
	for end := time.Now().Add(deadline); time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
		attr, err := dev.QueryPort(1)
		must(t, err)
		if attr.State == state {
			return
		}
	}
	t.Fatalf("port of %s does not become %s", netdev, state)
}

func TestPortDown(t *testing.T) {
	testenv.Guest(t)
	testenv.NeedsLinks(t)
	must(t, netlinkrdma.DeleteLink("rxe1"))
	t.Cleanup(func() { addLink(t, "rxe1", rig.Netdevs[1]) })
	// A pair of its own: the addresses of ve0 and ve1 would not survive being down.
	must(t, netlink.LinkAdd(&netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "td0"}, PeerName: "td1"}))
	link, err := netlink.LinkByName("td0")
	must(t, err)
	t.Cleanup(func() { must(t, netlink.LinkDel(link)) })
	peer, err := netlink.LinkByName("td1")
	must(t, err, netlink.LinkSetUp(peer), netlink.LinkSetUp(link))
	must(t, netlinkrdma.AddLink("rxetd", "rxe", "td0"))
	t.Cleanup(func() { must(t, netlinkrdma.DeleteLink("rxetd")) })

	dev := openDevice(t, "rxetd")
	setLink(t, dev, "td0", true)
	s := newSide(t, dev, uverbs.QPOptions{Path: uverbs.PathOptions{GID: uverbs.GIDAt(0)}}) // it has no IPv4 address
	e, err := s.qp.Endpoint()
	must(t, err)
	setLink(t, dev, "td0", false)
	for _, err := range []error{
		s.qp.Connect(t.Context(), e),
		func() error { _, err := s.qp.Endpoint(); return err }(),
	} {
		if !errors.Is(err, syscall.ENETDOWN) {
			t.Errorf("%v is not ENETDOWN", err)
		}
		says(t, err, "port 1 is PORT_DOWN", "ip link set td0 up")
	}
}

// TestNoWay: a peer that cannot be reached is an error that tells the local GID, the network
// interface and what is missing there.
func TestNoWay(t *testing.T) {
	testenv.NeedsIB(t, "GIDs")
	testenv.Guest(t)
	testenv.NeedsEthernet(t)
	table, err := openDevice(t, deviceName).GIDTable(1)
	must(t, err)
	linkLocal := slices.IndexFunc(table, func(e uverbs.GIDEntry) bool { return e.GID.Addr().IsLinkLocalUnicast() })
	if linkLocal < 0 {
		t.Fatalf("there is no link-local GID: %v", table)
	}
	linkLocal = table[linkLocal].Index
	for _, c := range []struct {
		peer  string
		index int
		want  []string
	}{
		{"192.0.2.1", ipv4Index, []string{"no route", rig.Netdevs[0], "10.1.0.1/24"}},
		{"10.1.0.99", ipv4Index, []string{"10.1.0.99 does not answer ARP on " + rig.Netdevs[0]}},
		{"fd00:9::1", rig.GID6, []string{"no route", rig.Netdevs[0], "fd00:1::1/64"}},
		{"fd00:1::99", rig.GID6, []string{"fd00:1::99 does not answer neighbour discovery on " + rig.Netdevs[0]}},
		{"10.1.0.2", rig.GID6, []string{"the peer is IPv4 and the GID IPv6", fmt.Sprintf("; GID %d: ", ipv4Index), "(10.1.0.1, RoCE v2) matches the peer's family"}},
		{"10.1.0.3", linkLocal, []string{"the peer is IPv4 and the GID IPv6", fmt.Sprintf("; GID %d: ", ipv4Index), "(10.1.0.1, RoCE v2) matches the peer's family"}},
		{"fd00:1::2", ipv4Index, []string{"the peer is IPv6 and the GID IPv4", fmt.Sprintf("; GID %d: ", rig.GID6), "(fd00:1::1, RoCE v2) matches the peer's family"}},
	} {
		t.Run(c.peer, func(t *testing.T) {
			t.Parallel() // the kernel waits for answers
			s := newSide(t, openDevice(t, deviceName), uverbs.QPOptions{Path: uverbs.PathOptions{GID: uverbs.GIDAt(c.index)}})
			peer, err := uverbs.ParseGID(c.peer)
			must(t, err)
			err = s.qp.Connect(t.Context(), uverbs.Endpoint{QPN: 77, GID: peer})
			says(t, err, append(c.want, "INIT to RTR", "peer "+c.peer, fmt.Sprintf("from GID %d: ", c.index))...)
			if s.qp.State() != uverbs.QPInit {
				t.Errorf("the QP is in state %s", s.qp.State())
			}
			_, err = s.pd.CreateAH(uverbs.AHAttr{Port: 1, Global: true, GRH: uverbs.GRH{DGID: peer, SGIDIndex: uint8(c.index), HopLimit: 1}})
			says(t, err, append(c.want, "CREATE_AH")...)
		})
	}
}

// TestInterfaceDown: the way to a peer whose GID's interface was set down meanwhile.
func TestInterfaceDown(t *testing.T) {
	testenv.Guest(t)
	testenv.NeedsLinks(t)
	must(t, netlink.LinkAdd(&netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "tf0"}, PeerName: "tf1"}))
	link, err := netlink.LinkByName("tf0")
	must(t, err)
	t.Cleanup(func() { must(t, netlink.LinkDel(link)) })
	peer, err := netlink.LinkByName("tf1")
	must(t, err, netlink.LinkSetUp(peer), netlink.LinkSetUp(link))
	must(t, netlinkrdma.AddLink("rxetf", "rxe", "tf0"))
	t.Cleanup(func() { must(t, netlinkrdma.DeleteLink("rxetf")) })

	dev := openDevice(t, "rxetf")
	setLink(t, dev, "tf0", true)
	s := newSide(t, dev, uverbs.QPOptions{Path: uverbs.PathOptions{GID: uverbs.GIDAt(0)}}) // it has no IPv4 address
	e, err := s.qp.Endpoint()
	must(t, err)
	e.GID[15]++
	setLink(t, dev, "tf0", false)
	ah := uverbs.AHAttr{Port: 1, Global: true, GRH: uverbs.GRH{DGID: e.GID, HopLimit: 1}}
	err = s.qp.Modify(uverbs.QPAttr{State: uverbs.QPRTR, AH: ah, PathMTU: uverbs.MTU1024, DestQPN: 77},
		uverbs.AttrState|uverbs.AttrAV|uverbs.AttrPathMTU|uverbs.AttrDestQPN|uverbs.AttrRQPSN|uverbs.AttrMaxDestRdAtomic|uverbs.AttrMinRNRTimer)
	_, ahErr := s.pd.CreateAH(ah)
	for verb, err := range map[string]error{fmt.Sprintf("MODIFY_QP INIT to RTR of QP %d (AV to fe80::", s.qp.QPN()): err, "CREATE_AH (to fe80::": ahErr} {
		if !errors.Is(err, syscall.ENETUNREACH) && !errors.Is(err, syscall.ENODEV) { // as the kernel looks at the route first or not
			t.Errorf("%v is neither ENETUNREACH nor ENODEV", err)
		}
		says(t, err, verb, "from GID 0 of port 1", "tf0 is down")
	}
}

func TestGIDIndex(t *testing.T) {
	testenv.NeedsIB(t, "GIDs")
	eachPath(t, func(t *testing.T) {
		testenv.NeedsEthernet(t)
		dev := openDevice(t, deviceName)
		for _, index := range []int{200, 5000} {
			s := newSide(t, dev, uverbs.QPOptions{Path: uverbs.PathOptions{GID: uverbs.GIDAt(index)}})
			_, err := s.qp.Endpoint()
			arg := argError(t, err, "GID index")
			if arg.Given != strconv.Itoa(index) || !strings.Contains(arg.Allowed, "10.1.0.1") {
				t.Errorf("error %v, want index %d and the used entries", err, index)
			}
			argError(t, s.qp.Connect(t.Context(), uverbs.Endpoint{QPN: 17, GID: uverbs.GID{15: 1}}), "GID index")
		}
		table, err := dev.GIDTable(1)
		must(t, err)
		for _, entry := range table {
			s := newSide(t, dev, uverbs.QPOptions{Path: uverbs.PathOptions{GID: uverbs.GIDAt(entry.Index)}})
			if e, err := s.qp.Endpoint(); err != nil || e.GID != entry.GID {
				t.Errorf("index %d gives GID %s, %v, want %s", entry.Index, e.GID, err, entry.GID)
			}
		}
	})
}

func TestTooBig(t *testing.T) {
	testenv.Tags(t, testenv.Unordered)
	eachPath(t, func(t *testing.T) {
		dev := openDevice(t, deviceName)
		attr := dev.QueryDevice()
		_, err := dev.CreateCQ(uverbs.CQOptions{MaxCQE: int(attr.MaxCQE) + 1})
		arg := argError(t, err, "MaxCQE")
		if arg.Given != strconv.Itoa(int(attr.MaxCQE)+1) || !strings.Contains(arg.Allowed, strconv.Itoa(int(attr.MaxCQE))) {
			t.Errorf("%v names neither what was asked nor what is allowed", err)
		}
		_, err = dev.CreateCQ(uverbs.CQOptions{MaxCQE: 8, Vector: attr.CompVectors})
		argError(t, err, "Vector")

		cq, err := dev.CreateCQ(uverbs.CQOptions{MaxCQE: 8})
		must(t, err)
		closeLater(t, cq)
		pd, err := dev.AllocPD()
		must(t, err)
		closeLater(t, pd)
		for field, o := range map[string]uverbs.QPOptions{
			"MaxSendWR":  {MaxSendWR: int(attr.MaxQPWR) + 1},
			"MaxRecvWR":  {MaxRecvWR: int(attr.MaxQPWR) + 1},
			"MaxSendSGE": {MaxSendSGE: int(attr.MaxSGE) + 1},
			"MaxRecvSGE": {MaxRecvSGE: -1},
			"MaxInline":  {MaxInline: -1},
			"Path.Port":  {Path: uverbs.PathOptions{Port: attr.PhysPortCount + 1}},
			"Type":       {Type: 77},
		} {
			o.SendCQ, o.RecvCQ = cq, cq
			_, err := pd.CreateQP(o)
			argError(t, err, field)
		}
		_, err = pd.CreateQP(uverbs.QPOptions{RecvCQ: cq})
		argError(t, err, "SendCQ")
	})
}

// TestQueueFull fills the send queue towards a peer that does not answer. A peer without
// a receive would do as well, were it not for rxe of Linux 5.10: on loopback it then
// sends again and again within the doorbell, and never returns.
func TestQueueFull(t *testing.T) {
	testenv.Tags(t, testenv.AnyLink)
	testenv.NeedsIB(t, "a send queue that holds what is not complete")
	eachPath(t, func(t *testing.T) {
		a, b := pair(t, uverbs.QPOptions{
			MaxSendWR: 4, MaxRecvWR: 4,
			Path: uverbs.PathOptions{Timeout: 16, RetryCount: 1},
		})
		for err := error(nil); ; {
			if err = b.qp.PostRecv(1); err != nil {
				if !errors.Is(err, uverbs.ErrQueueFull) {
					t.Fatalf("receive queue: %v, want ErrQueueFull", err)
				}
				break
			}
		}
		must(t, b.qp.Modify(uverbs.QPAttr{State: uverbs.QPReset}, uverbs.AttrState))
		n := 0
		var err error
		for ; err == nil; n++ {
			err = a.qp.PostSend(send(uint64(n), a.mr.SGE(0, 8)))
		}
		n-- // the last was refused
		if !errors.Is(err, uverbs.ErrQueueFull) || n < 4 || n != a.qp.Caps().MaxSendWR {
			t.Fatalf("after %d sends: %v, want ErrQueueFull after %d", n, err, a.qp.Caps().MaxSendWR)
		}
		if err := a.qp.PostSend(make([]uverbs.SendWR, 1000)...); !errors.As(err, new(*uverbs.ArgError)) {
			t.Fatalf("a batch larger than the queue: %v, want an ArgError", err)
		}
		// All of them complete, in order, and then there is room again.
		for i := range n {
			if wc := a.next(t); wc.ID != uint64(i) || wc.Status == uverbs.WCSuccess {
				t.Fatalf("completion %d is %+v, want a failure of %d", i, wc, i)
			}
		}
		must(t, a.qp.PostSend(send(99)))
	})
}

func TestPostState(t *testing.T) {
	eachPath(t, func(t *testing.T) {
		s := newSide(t, openDevice(t, deviceName), uverbs.QPOptions{})
		if err := s.qp.PostSend(send(1)); !errors.Is(err, uverbs.ErrState) {
			t.Errorf("PostSend in INIT: %v, want ErrState", err)
		}
		must(t, s.qp.PostRecv(1))
		must(t, s.qp.Modify(uverbs.QPAttr{State: uverbs.QPReset}, uverbs.AttrState))
		if err := s.qp.PostRecv(1); !errors.Is(err, uverbs.ErrState) {
			t.Errorf("PostRecv in RESET: %v, want ErrState", err)
		}
	})
}

func TestSGERange(t *testing.T) {
	eachPath(t, func(t *testing.T) {
		a, b := pair(t, uverbs.QPOptions{})
		for _, sge := range []uverbs.SGE{a.mr.SGE(0, bufferSize+1), a.mr.SGE(-1, 1), a.mr.SGE(bufferSize, 1)} {
			if err := a.qp.PostSend(send(1, sge)); !errors.Is(err, uverbs.ErrSGERange) {
				t.Errorf("PostSend: %v, want ErrSGERange", err)
			}
			if err := b.qp.PostRecv(1, sge); !errors.Is(err, uverbs.ErrSGERange) {
				t.Errorf("PostRecv: %v, want ErrSGERange", err)
			}
		}
		a.none(t)
	})
}

// wrongKey posts one work request and returns the status that it ends with.
func wrongKey(t *testing.T, wr uverbs.SendWR) (uverbs.WCStatus, error) {
	a, b := pair(t, uverbs.QPOptions{Path: uverbs.PathOptions{Timeout: 10, RetryCount: 2}})
	for i := range wr.SGL {
		wr.SGL[i].Addr += a.mr.Addr()
		wr.SGL[i].LKey += a.mr.LKey()
	}
	wr.RemoteAddr += b.mr.Addr()
	wr.RKey += b.mr.RKey()
	must(t, b.qp.PostRecv(1, b.mr.SGE(0, 100)), a.qp.PostSend(wr))
	wc := a.next(t)
	return wc.Status, a.qp.Err(&wc)
}

func TestRemoteAccess(t *testing.T) {
	testenv.NeedsIB(t, "acknowledgements")
	eachPath(t, func(t *testing.T) {
		access := []uverbs.WCStatus{uverbs.WCRemAccessErr}
		if rxeBefore(t, 6, 0) {
			// rxe of Linux 5.10 does not answer such a request, so the retries run out.
			access = append(access, uverbs.WCRetryExcErr)
		}
		for _, c := range []struct {
			name   string
			wr     uverbs.SendWR
			status []uverbs.WCStatus
		}{
			{"wrong rkey", uverbs.SendWR{Opcode: uverbs.WRRDMAWrite, SGL: []uverbs.SGE{{Length: 8}}, RKey: 0x1000}, access},
			{"beyond the MR", uverbs.SendWR{Opcode: uverbs.WRRDMARead, SGL: []uverbs.SGE{{Length: 8}}, RemoteAddr: bufferSize - 4}, access},
			// The manual says protection error. rxe of Linux 6.1 says operation error, that of
			// 6.12 flushes the request, for it moves the QP to ERR before it completes it.
			{"wrong lkey", uverbs.SendWR{Opcode: uverbs.WRSend, SGL: []uverbs.SGE{{Length: 8, LKey: 0x1000}}}, []uverbs.WCStatus{uverbs.WCLocProtErr, uverbs.WCLocQPOpErr, uverbs.WCWRFlushErr}},
		} {
			t.Run(c.name, func(t *testing.T) {
				c.wr.Flags = uverbs.SendSignaled
				status, err := wrongKey(t, c.wr)
				if !slices.Contains(c.status, status) || !errors.Is(err, status) {
					t.Errorf("status %s (%v), want one of %s", status, err, c.status)
				}
			})
		}
	})
}

// TestPeerGone closes the peer's QP: the sender learns it, with the peer's address.
func TestPeerGone(t *testing.T) {
	testenv.NeedsIB(t, "acknowledgements")
	eachPath(t, func(t *testing.T) {
		dev := openDevice(t, deviceName)
		o := uverbs.QPOptions{Path: uverbs.PathOptions{Timeout: 10, RetryCount: 1}}
		a, b := newSide(t, dev, o), newSide(t, dev, o)
		connect(t, a, b)
		qpn := b.qp.QPN()
		must(t, b.qp.Close())
		must(t, a.qp.PostSend(send(1, a.mr.SGE(0, 8)), send(2, a.mr.SGE(0, 8))))
		wc := a.next(t)
		err := a.qp.Err(&wc)
		if wc.ID != 1 || !errors.Is(err, uverbs.WCRetryExcErr) {
			t.Fatalf("first completion is %+v (%v), want a retry error of 1", wc, err)
		}
		says(t, err, peerName, "QP "+strconv.Itoa(int(qpn)), "2 attempts")
		if !onMLX5 { // whose counters the model does not count up
			says(t, err, "the port has counted: ", "sent_pkts ")
		}
		wc = a.next(t)
		if wc.ID != 2 || !uverbs.IsFlush(a.qp.Err(&wc)) {
			t.Fatalf("second completion is %+v, want a flush of 2", wc)
		}
		if attr, err := a.qp.Query(); err != nil || attr.State != uverbs.QPErr {
			t.Fatalf("QP is in state %s, %v, want ERR", attr.State, err)
		}
		// A completion that was polled before Close is explained after it too, without the ring.
		must(t, a.qp.Close())
		if err := a.qp.Err(&uverbs.WC{ID: 3, Status: uverbs.WCLocProtErr}); !errors.Is(err, uverbs.WCLocProtErr) {
			t.Errorf("a completion after Close: %v", err)
		}
	})
}

func TestUseAfterClose(t *testing.T) {
	eachPath(t, func(t *testing.T) {
		dev, err := uverbs.Open(deviceName)
		must(t, err)
		pd, err := dev.AllocPD()
		must(t, err)
		buf, err := uverbs.AllocBuffer(4096)
		must(t, err)
		mr, err := pd.RegMR(buf, 0)
		must(t, err)
		ch, err := dev.CreateCompChannel()
		must(t, err)
		cq, err := dev.CreateCQ(uverbs.CQOptions{MaxCQE: 8, Channel: ch})
		must(t, err)
		qp, err := pd.CreateQP(uverbs.QPOptions{SendCQ: cq, RecvCQ: cq})
		must(t, err)

		// Wrong order: who is used says by whom, and goes on working.
		for _, c := range []struct {
			object closer
			words  []string
		}{
			{buf, []string{"1 MR"}},
			{dev, []string{"1 CQ", "1 CompChannel", "1 PD"}},
			{pd, []string{"1 MR", "1 QP"}},
			{cq, []string{"1 QP"}},
			{ch, []string{"1 CQ"}},
		} {
			err := c.object.Close()
			if !errors.Is(err, syscall.EBUSY) {
				t.Errorf("close %T: %v, want EBUSY", c.object, err)
			}
			says(t, err, c.words...)
		}
		must(t, qp.Init(), qp.PostRecv(1), cq.Notify())

		for _, c := range []closer{qp, cq, ch, mr, buf, pd, dev} {
			must(t, c.Close(), c.Close()) // closing twice is fine
		}
		ctx := withDeadline(t)
		for name, err := range map[string]error{
			"AllocPD":     func() error { _, err := dev.AllocPD(); return err }(),
			"CreateCQ":    func() error { _, err := dev.CreateCQ(uverbs.CQOptions{MaxCQE: 1}); return err }(),
			"Channel":     func() error { _, err := dev.CreateCompChannel(); return err }(),
			"QueryPort":   func() error { _, err := dev.QueryPort(1); return err }(),
			"GIDTable":    func() error { _, err := dev.GIDTable(1); return err }(),
			"RegMR":       func() error { _, err := pd.RegMR(buf, 0); return err }(),
			"RegSlice":    func() error { _, err := pd.RegSlice(make([]byte, 1), 0); return err }(),
			"CreateQP":    func() error { _, err := pd.CreateQP(uverbs.QPOptions{SendCQ: cq, RecvCQ: cq}); return err }(),
			"Poll":        func() error { _, err := cq.Poll(make([]uverbs.WC, 1)); return err }(),
			"Notify":      cq.Notify(),
			"Wait":        func() error { _, err := ch.Wait(ctx); return err }(),
			"PostSend":    qp.PostSend(uverbs.SendWR{}),
			"PostRecv":    qp.PostRecv(1),
			"PostRecvs":   qp.PostRecvs(uverbs.RecvWR{}),
			"Modify":      qp.Modify(uverbs.QPAttr{State: uverbs.QPErr}, uverbs.AttrState),
			"Query":       func() error { _, err := qp.Query(); return err }(),
			"Endpoint":    func() error { _, err := qp.Endpoint(); return err }(),
			"Connect":     qp.Connect(ctx, uverbs.Endpoint{}),
			"Init":        qp.Init(),
			"SendInvalid": qp.PostSend(),
		} {
			if !errors.Is(err, os.ErrClosed) {
				t.Errorf("%s after Close: %v, want os.ErrClosed", name, err)
			}
		}
		if buf.Bytes() != nil {
			t.Error("a closed Buffer has bytes")
		}
	})
}
