package rdmacm

import (
	"context"
	"encoding/binary"
	"errors"
	"net/netip"
	"os"
	"reflect"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"github.com/google/go-cmp/cmp"

	"github.com/goverbs/goverbs/cm/internal/abi"
	"github.com/goverbs/goverbs/uverbs"
	"github.com/goverbs/goverbs/uverbs/ib"
)

// fakeKernel answers the commands of a channel.
type fakeKernel struct {
	mu     sync.Mutex
	refuse map[uint32]syscall.Errno
	last   map[uint32][]byte // the last command of each kind, 200 bytes of it
	given  map[uint32]int    // how many commands of each kind there were
	handle uint32
	gone   []uint32 // handles of destroyed IDs

	event  func() *abi.EventResp                                 // the next one or nil, if it is set
	wake   *os.File                                              // what is written there wakes the goroutine that reads events
	answer map[uint32]func(in, out unsafe.Pointer) syscall.Errno // to what has no answer of its own
}

// commandFunc is a function that carries out commands.
type commandFunc func(cmd uint32, in, out unsafe.Pointer) syscall.Errno

// Do implements commander.
func (f commandFunc) Do(cmd uint32, in, out []byte) syscall.Errno {
	return f(cmd, unsafe.Pointer(unsafe.SliceData(in)), unsafe.Pointer(unsafe.SliceData(out)))
}

// Close implements commander.
func (commandFunc) Close() {}

// newFake makes a channel to a kernel that takes everything.
func newFake(t *testing.T) (*Channel, *fakeKernel) {
	r, w, err := os.Pipe()
	must(t, err)
	t.Cleanup(func() { w.Close() })
	k := &fakeKernel{refuse: map[uint32]syscall.Errno{}, last: map[uint32][]byte{}, given: map[uint32]int{}, handle: 100, wake: w}
	f := &file{f: r, raw: value(r.SyscallConn())(t)}
	f.local = commandFunc(func(cmd uint32, in, out unsafe.Pointer) syscall.Errno {
		if cmd == abi.RDMA_USER_CM_CMD_GET_EVENT {
			if k.event != nil {
				if e := k.event(); e != nil {
					*(*abi.EventResp)(out) = *e
					return 0
				}
			}
			return syscall.EAGAIN
		}
		k.mu.Lock()
		defer k.mu.Unlock()
		k.given[cmd]++
		if errno := k.refuse[cmd]; errno != 0 {
			return errno
		}
		switch cmd {
		case abi.RDMA_USER_CM_CMD_CREATE_ID:
			k.handle++
			(*abi.CreateIDResp)(out).ID = k.handle
		case abi.RDMA_USER_CM_CMD_DESTROY_ID:
			k.gone = append(k.gone, (*abi.DestroyID)(in).ID)
		case abi.RDMA_USER_CM_CMD_BIND:
			k.last[cmd] = append([]byte(nil), unsafe.Slice((*byte)(in), unsafe.Sizeof(abi.Bind{}))...)
		case abi.RDMA_USER_CM_CMD_CONNECT:
			k.last[cmd] = append([]byte(nil), unsafe.Slice((*byte)(in), unsafe.Sizeof(abi.Connect{}))...)
		}
		if answer := k.answer[cmd]; answer != nil {
			return answer(in, out)
		}
		return 0
	})
	c := newChannel(f)
	t.Cleanup(func() { c.Close() })
	return c, k
}

// TestBindBytes compares addresses with struct sockaddr_in and sockaddr_in6.
func TestBindBytes(t *testing.T) {
	c, k := newFake(t)
	id := value(c.NewID(TCP))(t)
	for addr, want := range map[string][]byte{
		"10.1.0.2:4660":          {101, 0, 0, 0, 16, 0, 0, 0, 2, 0, 0x12, 0x34, 10, 1, 0, 2},
		"[::ffff:10.1.0.2]:4660": {101, 0, 0, 0, 16, 0, 0, 0, 2, 0, 0x12, 0x34, 10, 1, 0, 2},
		"[fe80::1%7]:1":          {101, 0, 0, 0, 28, 0, 0, 0, 10, 0, 0, 1, 0, 0, 0, 0, 0xfe, 0x80, 14 + 16: 0, 31: 1, 32: 7},
	} {
		must(t, id.Bind(AddrOf(netip.MustParseAddrPort(addr))))
		if got := k.last[abi.RDMA_USER_CM_CMD_BIND][:len(want)]; !cmp.Equal(got, want) {
			t.Errorf("%s: %v, want %v", addr, got, want)
		}
	}
	for _, zone := range []string{"nosuch0", "-5", "4294967296"} {
		err := id.Bind(AddrOf(netip.MustParseAddrPort("[fe80::1%" + zone + "]:1")))
		if err == nil || !strings.Contains(err.Error(), strconv.Quote(zone)+", allowed: the name or the index") {
			t.Errorf("zone %s: %v", zone, err)
		}
	}
	for _, local := range []string{"[fe80::1%7]:1", "[fe80::1%4294967295]:1"} { // as Addrs returns it
		a := AddrOf(netip.MustParseAddrPort(local))
		s, _, err := a.storage()
		if got := address(&s, 0); err != nil || got != a {
			t.Errorf("%s becomes %s, %v", a, got, err)
		}
	}
	must(t, id.Close(), c.Close())
	if !cmp.Equal(k.gone, []uint32{101}) {
		t.Errorf("destroyed are %v", k.gone)
	}
}

// TestConnectBytes compares a command with struct rdma_ucm_connect.
func TestConnectBytes(t *testing.T) {
	c, k := newFake(t)
	id := value(c.NewID(TCP))(t)
	must(t, id.Connect(ConnParam{PrivateData: []byte("hi"), ResponderResources: 1, InitiatorDepth: 2, FlowControl: true, RetryCount: 3,
		RNRRetryCount: 4, SRQ: true, QPN: 0x10203, QKey: 5, ECE: ECE{VendorID: 6, Options: 7}}))
	b := k.last[abi.RDMA_USER_CM_CMD_CONNECT]
	want := make([]byte, 288)
	copy(want, []byte{3, 2, 1, 0, 5, 0, 0, 0, 'h', 'i'})
	copy(want[264:], []byte{2, 1, 1, 2, 1, 3, 4, 1, 101, 0, 0, 0, 0, 0, 0, 0, 6, 0, 0, 0, 7, 0, 0, 0})
	if diff := cmp.Diff(want, b); diff != "" {
		t.Errorf("command (-want +got):\n%s", diff)
	}
}

// event lays an event out as the kernel does (struct rdma_ucm_event_resp).
func eventResp(uid uint64, id uint32, typ EventType, status int32) *abi.EventResp {
	return &abi.EventResp{Uid: uid, ID: id, Event: uint32(typ), Status: uint32(status)}
}

func TestEventOfID(t *testing.T) {
	c, k := newFake(t)
	id, datagrams := value(c.NewID(TCP))(t), value(c.NewID(UDP))(t)
	r := eventResp(id.uid, id.handle, EventConnectResponse, 0)
	p := r.Param.Conn()
	p.PrivateDataLen, p.ResponderResources, p.InitiatorDepth, p.FlowControl, p.RetryCount, p.RNRRetryCount, p.SRQ, p.QPNum, p.QKey = 255, 1, 2, 1, 3, 4, 1, 5, 6
	for i := range p.PrivateData {
		p.PrivateData[i] = byte(i)
	}
	r.Ece = abi.Ece{VendorID: 8, AttrMod: 9}
	e := c.newEvent(r)
	want := ConnParam{PrivateData: p.PrivateData[:255], ResponderResources: 1, InitiatorDepth: 2, FlowControl: true, RetryCount: 3, RNRRetryCount: 4, SRQ: true, QPN: 5, QKey: 6, ECE: ECE{VendorID: 8, Options: 9}}
	if e == nil || e.ID != id || e.Type != EventConnectResponse || !cmp.Equal(e.Param, want) || e.Err() != nil {
		t.Errorf("event is %+v", e)
	}
	r = eventResp(datagrams.uid, datagrams.handle, EventEstablished, 0)
	u := r.Param.UD()
	u.QPNum, u.QKey, u.PrivateDataLen = 11, 12, 2
	copy(u.PrivateData[:], "ud")
	if e = c.newEvent(r); e == nil || e.ID != datagrams || e.UD != (UDParam{QPN: 11, QKey: 12}) || string(e.Param.PrivateData) != "ud" {
		t.Errorf("event is %+v", e)
	}
	// A request makes an ID; of a listener that is gone, it is destroyed.
	e = c.newEvent(eventResp(id.uid, 77, EventConnectRequest, 0))
	if e == nil || e.Listen != id || e.ID == id || e.ID.handle != 77 || e.ID.space != TCP {
		t.Fatalf("request is %+v", e)
	}
	must(t, e.ID.Close(), id.Close(), datagrams.Close())
	if e := c.newEvent(eventResp(id.uid, 78, EventConnectRequest, 0)); e != nil {
		t.Errorf("a request to nobody: %+v", e)
	}
	if e := c.newEvent(eventResp(id.uid, id.handle, EventDisconnected, 0)); e != nil {
		t.Errorf("an event of a closed ID: %+v", e)
	}
	if want := []uint32{77, 101, 102, 78}; !cmp.Equal(k.gone, want) {
		t.Errorf("destroyed are %v, want %v", k.gone, want)
	}
}

func TestEventErrors(t *testing.T) {
	for _, c := range []struct {
		typ    EventType
		status int32
		is     error
		say    string
	}{
		{EventAddrError, -int32(syscall.ENODEV), syscall.ENODEV, "ADDR_ERROR: no such device"},
		{EventUnreachable, -int32(syscall.ETIMEDOUT), syscall.ETIMEDOUT, "UNREACHABLE"},
		{EventRejected, 8, syscall.ECONNREFUSED, "nobody listens on this port (reason 8)"},
		{EventRejected, 999, syscall.ECONNREFUSED, "reason 999"},
		{EventRejected, -int32(syscall.ECONNRESET), syscall.ECONNRESET, "REJECTED: connection reset by peer: the program there has rejected the connection"},
		{EventUnreachable, 1, syscall.ECONNREFUSED, "nobody listens on this port (status 1)"},
		{EventUnreachable, 9, syscall.ECONNREFUSED, "status 9"},
		{EventType(99), 3, nil, "event 99: status 3"},
		{EventUser, 3, nil, "USER: status 3"},
		{EventMulticastError, 0, nil, "MULTICAST_ERROR: the port no longer has a GID"},
		{EventMulticastError, -int32(syscall.ENETRESET), syscall.ENETRESET, "the membership is lost"},
		{EventMulticastError, -int32(syscall.ETIMEDOUT), syscall.ETIMEDOUT, "subnet administrator does not answer"},
		{EventMulticastError, -int32(syscall.EINVAL), syscall.EINVAL, "has refused"},
		{EventAddrInfoError, -int32(syscall.EINVAL), syscall.EINVAL, "no such service"},
	} {
		err := (&Event{Type: c.typ, Status: c.status}).Err()
		if err == nil || c.is != nil && !errors.Is(err, c.is) || !strings.Contains(err.Error(), c.say) {
			t.Errorf("%s %d: %v, want %q", c.typ, c.status, err, c.say)
		}
	}
}

func TestRefused(t *testing.T) {
	c, k := newFake(t)
	k.refuse[abi.RDMA_USER_CM_CMD_CREATE_ID] = syscall.ENOMEM
	if _, err := c.NewID(TCP); !errors.Is(err, syscall.ENOMEM) || len(c.ids) != 0 {
		t.Errorf("NewID: %v, %d IDs are left", err, len(c.ids))
	}
	delete(k.refuse, abi.RDMA_USER_CM_CMD_CREATE_ID)
	var arg *ArgError
	if _, err := c.NewID(1); !errors.As(err, &arg) || arg.Field != "port space" {
		t.Errorf("NewID: %v", err)
	}
	// Private data beyond what a step carries, by port space.
	for space, limits := range map[PortSpace][3]int{TCP: {56, 196, 148}, UDP: {180, 136, 136}} {
		id := value(c.NewID(space))(t)
		for i, step := range []func(data []byte) error{
			func(data []byte) error { return id.Connect(ConnParam{PrivateData: data}) },
			func(data []byte) error { return id.Accept(ConnParam{PrivateData: data}) },
			func(data []byte) error { return id.Reject(data, ReasonConsumer) },
		} {
			must(t, step(make([]byte, limits[i])))
			if err := step(make([]byte, limits[i]+1)); !errors.As(err, &arg) || arg.Field != "PrivateData" {
				t.Errorf("%s, step %d, %d bytes: %v", space, i, limits[i]+1, err)
			}
		}
		must(t, id.Close())
	}
	id := value(c.NewID(IPoIB))(t)
	for cmd, do := range map[uint32]func() error{
		abi.RDMA_USER_CM_CMD_SET_OPTION:    func() error { return id.SetTOS(1) },
		abi.RDMA_USER_CM_CMD_NOTIFY:        func() error { return id.Notify(uverbs.EventCommEst) },
		abi.RDMA_USER_CM_CMD_RESOLVE_ROUTE: func() error { return id.ResolveRoute(time.Second) },
		abi.RDMA_USER_CM_CMD_QUERY: func() error {
			_, err := id.Addrs()
			return err
		},
		abi.RDMA_USER_CM_CMD_INIT_QP_ATTR: func() error {
			_, _, err := id.QPAttr(ib.QPInit)
			return err
		},
	} {
		k.refuse[cmd] = syscall.EACCES
		if err := do(); !errors.Is(err, syscall.EACCES) || !strings.Contains(err.Error(), "credentials") {
			t.Errorf("command %d: %v", cmd, err)
		}
		delete(k.refuse, cmd)
	}
	k.refuse[abi.RDMA_USER_CM_CMD_DESTROY_ID] = syscall.EBUSY
	if err := id.Close(); !errors.Is(err, syscall.EBUSY) || len(c.ids) != 1 {
		t.Errorf("Close: %v, %d IDs are left", err, len(c.ids))
	}
	// The IDs that the process may no longer destroy go with the channel.
	k.refuse[abi.RDMA_USER_CM_CMD_DESTROY_ID] = syscall.EACCES
	if err := id.Close(); !errors.Is(err, syscall.EACCES) || !strings.Contains(err.Error(), "credentials") || len(c.ids) != 0 {
		t.Errorf("Close: %v, %d IDs are left", err, len(c.ids))
	}
	must(t, id.Close(), id.Close())
	if err := id.Disconnect(); !isClosedError(err) {
		t.Errorf("Disconnect after Close: %v", err)
	}
}

// TestClosedFile: no command is given on a file that is closed, whose descriptor may be that of another file.
func TestClosedFile(t *testing.T) {
	c, k := newFake(t)
	must(t, c.Close())
	errno := command(c.file, abi.RDMA_USER_CM_CMD_LISTEN, &abi.Listen{})
	if errno != errClosedFile || k.given[abi.RDMA_USER_CM_CMD_LISTEN] != 0 {
		t.Errorf("error %v, %d commands", errno, k.given[abi.RDMA_USER_CM_CMD_LISTEN])
	}
}

// wantEvent decodes struct rdma_ucm_event_resp (rdma/rdma_user_cm.h) by the places of its fields.
func wantEvent(raw []byte, datagrams bool) *Event {
	le := binary.LittleEndian
	e := &Event{Type: EventType(le.Uint32(raw[12:])), Status: int32(le.Uint32(raw[16:]))}
	private := func(at, length int) []byte {
		if raw[length] == 0 {
			return nil
		}
		return raw[at : at+int(raw[length])]
	}
	qpn, qkey, ece := le.Uint32(raw[20:]), le.Uint32(raw[24:]), ECE{VendorID: le.Uint32(raw[328:]), Options: le.Uint32(raw[332:])}
	switch {
	case e.Type == EventUser || e.Type == EventInternal:
		e.Arg = le.Uint64(raw[20:])
	case datagrams: // struct ib_uverbs_ah_attr is at 28
		e.UD = UDParam{QPN: qpn, QKey: qkey, AH: uverbs.AHAttr{
			DLID: le.Uint16(raw[52:]), SL: raw[54], SrcPathBits: raw[55], StaticRate: ib.StaticRate(raw[56]), Global: raw[57] != 0, Port: raw[58],
			GRH: uverbs.GRH{DGID: ib.GID(raw[28:44]), FlowLabel: le.Uint32(raw[44:]), SGIDIndex: raw[48], HopLimit: raw[49], TrafficClass: raw[50]},
		}}
		e.Param = ConnParam{PrivateData: private(60, 316), QPN: qpn, QKey: qkey, ECE: ece}
	default:
		e.Param = ConnParam{
			PrivateData: private(28, 284), QPN: qpn, QKey: qkey, SRQ: raw[285] != 0, ResponderResources: raw[286], InitiatorDepth: raw[287],
			FlowControl: raw[288] != 0, RetryCount: raw[289], RNRRetryCount: raw[290], ECE: ece,
		}
	}
	return e
}

// FuzzEvent: whatever the kernel answers, its fields are decoded from their places, and nothing panics.
func FuzzEvent(f *testing.F) {
	f.Add(make([]byte, unsafe.Sizeof(abi.EventResp{})))
	for typ := range byte(EventInternal + 1) { // the other bytes all differ
		b := counted(0, int(unsafe.Sizeof(abi.EventResp{})))
		copy(b[12:], []byte{typ, 0, 0, 0})
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		var r abi.EventResp
		copy(unsafe.Slice((*byte)(unsafe.Pointer(&r)), unsafe.Sizeof(r)), b)
		for _, datagrams := range []bool{false, true} {
			e := decode(&r, datagrams)
			if want := wantEvent(bytesAt(unsafe.Pointer(&r), int(unsafe.Sizeof(r))), datagrams); !cmp.Equal(e, want, cmp.AllowUnexported(Event{})) {
				t.Errorf("event %+v, want %+v", e, want)
			}
			_ = e.Type.String()
			if err := e.Err(); (err == nil) != (e.Status == 0 && e.Type != EventMulticastError) || err != nil && err.Error() == "" {
				t.Errorf("status %d: %v", e.Status, err)
			}
		}
		if len(b) >= 8 && binary.LittleEndian.Uint64(b) != r.Uid {
			t.Error("the layout is wrong")
		}
	})
}

// TestListenBesideListen: a call of Listen that fails beside one that succeeds does not let the listener migrate.
func TestListenBesideListen(t *testing.T) {
	c, _ := newFake(t)
	id := value(c.NewID(TCP))(t)
	begun, second := make(chan bool), make(chan bool)
	var calls atomic.Int32
	others := c.file.local.(commandFunc)
	c.file.local = commandFunc(func(cmd uint32, in, out unsafe.Pointer) syscall.Errno {
		switch {
		case cmd != abi.RDMA_USER_CM_CMD_LISTEN:
			return others(cmd, in, out)
		case calls.Add(1) > 1:
			return 0
		}
		close(begun)
		<-second
		return syscall.EINVAL
	})
	first := make(chan error)
	go func() { first <- id.Listen(1) }()
	<-begun
	must(t, id.Listen(1))
	close(second)
	if err := <-first; !errors.Is(err, syscall.EINVAL) {
		t.Errorf("the first call: %v", err)
	}
	to, _ := newFake(t)
	if err := id.Migrate(to); !errors.Is(err, syscall.EINVAL) {
		t.Errorf("the listener migrates: %v", err)
	}
	must(t, id.Close())
}

// TestMethodsWhileClosing: while Close waits for a command, other methods do not wait for Close.
func TestMethodsWhileClosing(t *testing.T) {
	c, _ := newFake(t)
	id := value(c.NewID(UDP))(t)
	args := idArgs{ctx: within(t), addr: Addr{IP: netip.AddrFrom4([4]byte{192, 0, 2, 1})}, group: netip.AddrFrom4([4]byte{239, 7, 1, 1}), to: c}
	group := value(id.Join(args.group, JoinFullMember))(t)
	begun, finish := make(chan bool), make(chan bool)
	others := c.file.local.(commandFunc)
	c.file.local = commandFunc(func(cmd uint32, in, out unsafe.Pointer) syscall.Errno {
		if cmd == abi.RDMA_USER_CM_CMD_NOTIFY {
			close(begun)
			<-finish
		}
		return others(cmd, in, out)
	})
	results := make(chan error, 2)
	go func() { results <- id.Notify(uverbs.EventCommEst) }()
	<-begun
	go func() { results <- id.Close() }()
	for id.open.TryRLock() { // until Close waits
		id.open.RUnlock()
		runtime.Gosched()
	}
	failWhileClosing(t, id, &args, group)
	close(finish)
	must(t, <-results, <-results)
}

// failWhileClosing calls the methods of an ID and a group that Close closes: they do not wait, and those that give a
// command fail.
func failWhileClosing(t *testing.T, id *ID, args *idArgs, group *Group) {
	t.Helper()
	noCommand := strings.Fields("ECE SetECE SetQPAckTimeout SetRNRRetryCount SetRetryCount ShareEvents")
	needsDevice := strings.Fields("CheckRemote CreateQP CreateSRQ")
	methods := []string{"leave"} // the group
	for m := range reflect.TypeFor[*ID]().Methods() {
		methods = append(methods, m.Name)
	}
	for _, name := range methods {
		if name == "Close" || slices.Contains(needsDevice, name) {
			continue
		}
		done := make(chan error, 1)
		go func() {
			if name == "leave" {
				done <- group.Close()
				return
			}
			err, _ := args.call(id, name)
			done <- err
		}()
		select {
		case err := <-done:
			if name != "leave" && !slices.Contains(noCommand, name) && !isClosedError(err) {
				t.Errorf("%s: %v", name, err)
			}
		case <-args.ctx.Done():
			t.Errorf("%s waits for Close", name)
		}
	}
}

// TestMethodsWhileClosingQP: while Close closes the QP, which may take a device long, methods do not wait for Close.
func TestMethodsWhileClosingQP(t *testing.T) {
	c, _ := newFake(t)
	id := value(c.NewID(UDP))(t)
	args := idArgs{ctx: within(t), addr: Addr{IP: netip.AddrFrom4([4]byte{192, 0, 2, 1})}, group: netip.AddrFrom4([4]byte{239, 7, 1, 1}), to: c}
	group := value(id.Join(args.group, JoinFullMember))(t)
	id.queues.mu.Lock() // as Close has it meanwhile
	closed := make(chan error, 1)
	go func() { closed <- id.Close() }()
	for id.closing.Load() == 0 {
		runtime.Gosched()
	}
	failWhileClosing(t, id, &args, group)
	if _, err := id.createQP(nil, 1, uverbs.QPOptions{}); !isClosedError(err) {
		t.Errorf("CreateQP: %v", err)
	}
	id.queues.mu.Unlock()
	must(t, <-closed)
}

// TestMigrateKeepsOrder: the events of an ID that moves come before one that the kernel reports on the new channel at
// once, also the event that a goroutine has read from the old channel and is about to deliver.
func TestMigrateKeepsOrder(t *testing.T) {
	from, old := newFake(t)
	to, k := newFake(t)
	id, other := value(from.NewID(TCP))(t), value(from.NewID(TCP))(t)
	want := []EventType{EventAddrResolved, EventRouteResolved, EventEstablished}
	put(t, from, id, want[0])
	got := make(chan EventType, len(want))
	var calls sync.WaitGroup
	giveTime := func() { // for an event that must not come
		for end := time.Now().Add(50 * time.Millisecond); len(got) == 0 && time.Now().Before(end); {
			runtime.Gosched()
		}
	}
	reads := 0
	old.event = func() *abi.EventResp {
		if reads++; reads > 1 {
			return nil
		}
		calls.Go(func() { must(t, id.Migrate(to)) })
		giveTime()
		return eventResp(id.uid, id.handle, want[1], 0)
	}
	var reported atomic.Bool
	k.answer = map[uint32]func(in, out unsafe.Pointer) syscall.Errno{
		abi.RDMA_USER_CM_CMD_MIGRATE_ID: func(_, _ unsafe.Pointer) syscall.Errno {
			reported.Store(true)
			value(k.wake.Write([]byte{0}))(t)
			giveTime()
			return 0
		},
	}
	k.event = func() *abi.EventResp {
		if reported.CompareAndSwap(true, false) {
			return eventResp(id.uid, id.handle, want[2], 0)
		}
		return nil
	}
	ctx, cancel := context.WithCancel(t.Context())
	calls.Go(func() {
		for range want {
			got <- value(to.Next(within(t)))(t).Type
		}
	})
	calls.Go(func() {
		if e, err := other.Next(ctx); !errors.Is(err, context.Canceled) { // reads the events of the old channel
			t.Errorf("Wait of another ID: %v, %v", e, err)
		}
	})
	for i, typ := range want {
		if e := <-got; e != typ {
			t.Errorf("event %d is %v, want %v", i, e, typ)
		}
	}
	cancel()
	calls.Wait()
	must(t, id.Close(), other.Close())
}

// TestMigrateToClosing: Migrate to a channel that is being closed does not keep the goroutine that reads the channel, for
// which Close waits.
func TestMigrateToClosing(t *testing.T) {
	from, _ := newFake(t)
	to, _ := newFake(t)
	id := value(from.NewID(TCP))(t)
	to.mu.Lock() // as Close has it meanwhile
	migrated := make(chan error, 1)
	go func() { migrated <- id.Migrate(to) }()
	for id.open.TryRLock() {
		id.release()
		runtime.Gosched()
	}
	for end := time.Now().Add(20 * time.Millisecond); time.Now().Before(end); runtime.Gosched() {
		if !to.events.mu.TryLock() {
			t.Error("no event of the channel can be read")
			break
		}
		to.events.mu.Unlock()
	}
	to.closed = true
	to.mu.Unlock()
	if err := <-migrated; !isClosedError(err) {
		t.Errorf("Migrate: %v", err)
	}
	to.closed = false // for the end of the test
	must(t, id.Close())
}

// TestUnexpectedRequest: a request that comes while another method than Request waits for an event of the listener is
// not left open. DisconnectWait is such a method, since the kernel lets a listener disconnect.
func TestUnexpectedRequest(t *testing.T) {
	c, k := newFake(t)
	id := value(c.NewID(TCP))(t)
	must(t, id.Listen(1))
	const handle = 7777
	if e := c.newEvent(eventResp(id.uid, handle, EventConnectRequest, 0)); !c.deliver(e, nil) {
		t.Fatal("the request has no owner")
	}
	var unexpected *EventError
	if err := id.DisconnectWait(within(t)); !errors.As(err, &unexpected) || unexpected.Type != EventConnectRequest {
		t.Errorf("DisconnectWait: %v", err)
	}
	if len(c.ids) != 1 || !slices.Contains(k.gone, handle) {
		t.Errorf("%d IDs are left, destroyed are %v", len(c.ids), k.gone)
	}
	must(t, id.Close())
}
