package uverbs

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/goverbs/goverbs/uverbs/ib"
)

func TestSysfsPKey(t *testing.T) {
	root := t.TempDir()
	dir := filepath.Join(root, "rxe0/ports/2/pkeys")
	must(t, os.MkdirAll(dir, 0o777))
	for name, text := range map[string]string{"0": "0xffff\n", "1": "0x7001\n", "2": "0x10000\n", "3": ""} {
		must(t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o666))
	}
	for index, want := range []uint16{0xffff, 0x7001} {
		if got, err := sysfsPKey(root, "rxe0", 2, index); got != want || err != nil {
			t.Errorf("key %d is %#x, %v, want %#x", index, got, err, want)
		}
	}
	read := func(index int) (uint16, error) { return sysfsPKey(root, "rxe0", 2, index) }
	for want, pkey := range []uint16{0xffff, 0x7001} {
		if got, err := pkeyIndex(read, "rxe0", 2, 2, pkey); got != want || err != nil {
			t.Errorf("key %#x is at %d, %v, want %d", pkey, got, err, want)
		}
	}
	if _, err := pkeyIndex(read, "rxe0", 2, 2, 0xf001); !errors.Is(err, fs.ErrNotExist) || !strings.Contains(err.Error(), "0xf001 is not among its 2") {
		t.Errorf("a key that is not there: %v", err)
	}
	if i, err := pkeyIndex(read, "rxe0", 2, 4, 0xf001); i != 0 || err == nil || errors.Is(err, fs.ErrNotExist) || !strings.Contains(err.Error(), "key 2 of port 2") {
		t.Errorf("a table with a key that cannot be read: %d, %v", i, err)
	}
	for _, index := range []int{2, 3} {
		if _, err := sysfsPKey(root, "rxe0", 2, index); err == nil || !strings.Contains(err.Error(), "of port 2") {
			t.Errorf("key %d: %v", index, err)
		}
	}
	if _, err := sysfsPKey(root, "rxe0", 1, 0); !errors.Is(err, fs.ErrNotExist) || !strings.Contains(err.Error(), "sysfs") {
		t.Errorf("nothing there: %v", err)
	}
}

func TestQueryPKeyRefused(t *testing.T) {
	d, k := fakeDevice(t, pathAuto)
	k.port.PKeyTblLen = 1
	for _, index := range []int{-1, 1} {
		_, err := d.PKey(1, index)
		if arg, ok := errors.AsType[*ArgError](err); !ok || arg.Allowed != "0 to 0" {
			t.Errorf("index %d: %v", index, err)
		}
	}
	must(t, d.Close())
	errorIs(t, second(d.PKey(1, 0)), os.ErrClosed, "after Close")
}

func TestChoosePKey(t *testing.T) {
	errRead := errors.New("unreadable")
	for _, tt := range []struct {
		table     []uint16 // 0x8000 cannot be read
		partition uint16
		index     int
		key       uint16
	}{
		{[]uint16{0xffff}, 0, 0, 0xffff},
		{[]uint16{0x7fff, 0, 0x8001, 0xffff}, 0, 2, 0x8001},
		{[]uint16{0xffff, 0x8000}, 0, 0, 0xffff},
		{[]uint16{0, 0x7fff, 2}, 0, 1, 0x7fff},
		{[]uint16{0, 0}, 0, 0, 0},
		{nil, 0, 0, 0},
		{[]uint16{0x7fff, 0x8001}, 0xffff, 0, 0x7fff},
		{[]uint16{0x8002, 1, 0x8001}, 1, 2, 0x8001},
		{[]uint16{0x8002, 1, 0x8001}, 0x8001, 2, 0x8001},
		{[]uint16{0x8002, 1}, 0x8001, 1, 1},
		{[]uint16{0x8002, 0}, 0x8001, 0, 0},
	} {
		index, key, err := choosePKey(func(i int) (uint16, error) {
			if tt.table[i] == 0x8000 {
				return 0, errRead
			}
			return tt.table[i], nil
		}, len(tt.table), tt.partition)
		if index != tt.index || key != tt.key || err != nil {
			t.Errorf("%#x for %#x: %d, %#x, %v, want %d, %#x", tt.table, tt.partition, index, key, err, tt.index, tt.key)
		}
	}
	_, _, err := choosePKey(func(int) (uint16, error) { return 0, errRead }, 1, 0)
	errorIs(t, err, errRead, "a table that cannot be read")
}

// qpOn returns a QP on a device that has a P_Key table and a link layer.
func qpOn(t *testing.T, link ib.LinkLayer, table []uint16, typ ib.QPType, path PathOptions) (*QP, *fakeKernel) {
	t.Helper()
	l := addLocal(t, "local0", func(l *localDevice) { l.pkeys = table })
	d, c := l.open(t)
	k := c.k
	k.port.LinkLayer, k.port.LID = uint8(link), 7
	pd := value(d.AllocPD())(t)
	cq := value(d.CreateCQ(CQOptions{Size: 31}))(t)
	qp := value(pd.CreateQP(QPOptions{Type: typ, SendCQ: cq, RecvCQ: cq, MaxSendWR: 7, MaxRecvWR: 7, Path: path}))(t)
	t.Cleanup(func() { must(t, qp.Close(), cq.Close(), pd.Close()) })
	k.calls = nil
	return qp, k
}

// TestPartitionOfQP: a QP becomes Init with the P_Key of its path, by default the first one of a full member,
// and its endpoint has the key unless it is the usual one. On RoCE the default needs no command.
func TestPartitionOfQP(t *testing.T) {
	limited := []uint16{0x7fff, 0, 0x8001, 0xffff, 2}
	for _, tt := range []struct {
		name  string
		link  ib.LinkLayer
		table []uint16
		want  uint16
		index uint16
		told  uint16
	}{
		{"default", ib.LinkLayerInfiniBand, limited, 0, 2, 0x8001},
		{"default partition", ib.LinkLayerInfiniBand, limited, 0x7fff, 3, 0},
		{"limited member", ib.LinkLayerInfiniBand, limited, 0x8002, 4, 2},
		{"only limited members", ib.LinkLayerInfiniBand, []uint16{0, 0x7fff}, 0, 1, 0x7fff},
		{"usual table", ib.LinkLayerInfiniBand, []uint16{0xffff, 0x8001}, 0, 0, 0},
		{"RoCE", ib.LinkLayerEthernet, []uint16{0xffff}, 0, 0, 0},
		{"RoCE, key given", ib.LinkLayerEthernet, []uint16{0xffff}, 0xffff, 0, 0},
	} {
		t.Run(tt.name, func(t *testing.T) {
			qp, k := qpOn(t, tt.link, tt.table, ib.RC, PathOptions{PKey: tt.want})
			if tt.link == ib.LinkLayerInfiniBand {
				if e := value(qp.Endpoint())(t); e.PKey != tt.told {
					t.Errorf("the endpoint before Init has P_Key %#x, want %#x", e.PKey, tt.told)
				}
			}
			k.calls = nil
			must(t, qp.Init())
			if n := len(k.calls); n > 2 {
				t.Errorf("Init gave %d commands, want QUERY_PORT and MODIFY_QP", n)
			}
			if got := k.modifies(); len(got) != 1 || got[0].PKeyIndex != tt.index {
				t.Errorf("Init: %+v, want P_Key index %d", got, tt.index)
			}
			if tt.link == ib.LinkLayerInfiniBand {
				if e := value(qp.Endpoint())(t); e.PKey != tt.told {
					t.Errorf("the endpoint has P_Key %#x, want %#x", e.PKey, tt.told)
				}
			}
		})
	}
}

// TestPartitionOfUD: a UD QP has the P_Key of its path, too.
func TestPartitionOfUD(t *testing.T) {
	qp, k := qpOn(t, ib.LinkLayerInfiniBand, []uint16{0x7fff, 0x8001, 0x8002}, ib.UD, PathOptions{PKey: 2})
	must(t, qp.ReadyUD(1))
	if got := k.modifies(); len(got) != 3 || got[0].PKeyIndex != 2 {
		t.Errorf("ReadyUD: %+v, want P_Key index 2", got)
	}
	if _, err := qp.PathTo(Endpoint{LID: 8, PKey: 0x8001}); err == nil || !strings.Contains(err.Error(), "remote PKey is 0x8001, allowed: 0x8002 or 0x0002") {
		t.Errorf("a path to another partition: %v", err)
	}
}

// TestPartitionUnknown: a key that the port does not have is refused with those that it has.
func TestPartitionUnknown(t *testing.T) {
	qp, k := qpOn(t, ib.LinkLayerInfiniBand, []uint16{0x7fff, 0, 0x8001}, ib.RC, PathOptions{PKey: 0x8009})
	for name, f := range map[string]func() error{
		"Init":     qp.Init,
		"Connect":  func() error { return qp.Connect(t.Context(), Endpoint{QPN: 7, LID: 8}) },
		"Endpoint": func() error { return second(qp.Endpoint()) },
	} {
		err := f()
		arg, ok := errors.AsType[*ArgError](err)
		if !ok || arg.Op != name || arg.Field != "Path.PKey" || arg.Given != "0x8009" || arg.Allowed != "the P_Keys of port 1 of local0: 0x7fff, 0x8001" {
			t.Errorf("%s: %v", name, err)
		}
	}
	if got := k.modifies(); len(got) != 0 || qp.State() != ib.QPReset {
		t.Errorf("%d changes, state %s", len(got), qp.State())
	}
}

// TestPartitionOfPeer: Connect refuses a peer that cannot hear this side, if both keys are known.
func TestPartitionOfPeer(t *testing.T) {
	table := []uint16{1, 0x8002, 0xffff}
	for _, tt := range []struct{ own, peer uint16 }{
		{1, 1}, {1, 0x8001}, {0x8002, 2}, {0x8002, 0x8002}, {0x8002, 0x8001}, {0x8002, 0}, {1, 0}, {0xffff, 0x7fff}, {0xffff, 0x8001}, {1, 0x8002},
	} {
		good := tt.peer == 0 || slices.Contains([][2]uint16{{1, 0x8001}, {0x8002, 2}, {0x8002, 0x8002}, {0xffff, 0x7fff}}, [2]uint16{tt.own, tt.peer})
		t.Run(pkeyText(tt.own)+" and "+pkeyText(tt.peer), func(t *testing.T) {
			qp, _ := qpOn(t, ib.LinkLayerInfiniBand, table, ib.RC, PathOptions{PKey: tt.own})
			err := qp.Connect(t.Context(), Endpoint{QPN: 7, LID: 8, PKey: tt.peer})
			arg, ok := errors.AsType[*ArgError](err)
			switch {
			case good && err != nil, !good && (!ok || arg.Field != "remote PKey" || arg.Given != pkeyText(tt.peer)):
				t.Errorf("Connect: %v", err)
			case tt.own == 1 && tt.peer == 1 && !strings.Contains(arg.Allowed, "0x8001, as this side is a limited member of its partition, 0x0001"):
				t.Errorf("two limited members: %v", err)
			}
		})
	}
	// A raw change chooses the key that counts.
	qp, _ := qpOn(t, ib.LinkLayerInfiniBand, table, ib.RC, PathOptions{PKey: 1})
	must(t, qp.Modify(QPAttr{State: ib.QPInit, Port: 1, PKeyIndex: 1}, AttrState|AttrPKeyIndex|AttrPort|AttrAccess))
	if e := value(qp.Endpoint())(t); e.PKey != 0x8002 {
		t.Errorf("the endpoint has P_Key %#x, want that of Modify, 0x8002", e.PKey)
	}
	must(t, qp.Connect(t.Context(), Endpoint{QPN: 7, LID: 8, PKey: 2}))
}

// TestPartitionCheck: options and endpoints with keys that none can have, and the text of one with a key.
func TestPartitionCheck(t *testing.T) {
	d, _ := fakeDevice(t, pathAuto)
	if err := (&PathOptions{PKey: 0x8000}).check(d); err == nil || !strings.Contains(err.Error(), "Path.PKey is 0x8000, allowed: 0x1 to 0x7fff") {
		t.Errorf("P_Key 0x8000: %v", err)
	}
	for _, key := range []uint16{1, 0x8001} {
		must(t, (&PathOptions{PKey: key}).check(d))
		e, back := Endpoint{QPN: 1, PSN: 2, LID: 3, PKey: key}, Endpoint{}
		text := value(e.MarshalText())(t)
		must(t, back.UnmarshalText(text))
		if want := "qpn=1,psn=2,lid=3,pkey=" + pkeyText(key); back != e || string(text) != want {
			t.Errorf("%+v is %q, which is read as %+v", e, text, back)
		}
	}
}

// TestPartitionKept: the choice for one path, which the device keeps, is not that for another one.
func TestPartitionKept(t *testing.T) {
	qp, _ := qpOn(t, ib.LinkLayerInfiniBand, []uint16{0x7fff, 0x8001, 0x8002}, ib.RC, PathOptions{})
	for _, tt := range []struct{ want, index, key uint16 }{{0, 1, 0x8001}, {0, 1, 0x8001}, {2, 2, 0x8002}, {0xffff, 0, 0x7fff}, {0, 1, 0x8001}} {
		qp.path.PKey = tt.want
		if index, key, err := qp.partition("Init", 1); index != tt.index || key != tt.key || err != nil {
			t.Errorf("P_Key %#x: %d, %#x, %v, want %d, %#x", tt.want, index, key, err, tt.index, tt.key)
		}
	}
	must(t, qp.Modify(QPAttr{State: ib.QPInit, Port: 1, PKeyIndex: 2}, AttrState|AttrPKeyIndex|AttrPort|AttrAccess))
	if index, key, err := qp.partition("Init", 1); index != 2 || key != 0x8002 || err != nil {
		t.Errorf("in state Init: %d, %#x, %v", index, key, err)
	}
}

// TestPartitionCached: a choice serves all QPs of a port until an event says that a P_Key table may have changed. This
// kernel has no table, so only the choice can have the key.
func TestPartitionCached(t *testing.T) {
	d, k := fakeDevice(t, pathAuto)
	k.port.LinkLayer = uint8(ib.LinkLayerInfiniBand)
	q := &QP{object: object{dev: d}, typ: ib.RC}
	choose := func(when string, want uint16) {
		t.Helper()
		d.ports.pkeys[1].Load().asked.Store(-int64(time.Hour))
		if index, key, err := q.partition("Init", 1); index != want || key != 0x8000|want || err != nil {
			t.Errorf("%s: %d, %#x, %v, want %d", when, index, key, err, want)
		}
	}
	c := newCached[chosenPKey](d)
	c.value = chosenPKey{index: 5, key: 0x8005}
	d.ports.pkeys[1].Store(c)
	choose("before an event", 5)
	d.ports.pkeys[2].Store(newCached[chosenPKey](d))
	choose("with a choice for another port", 5)
	d.event(EventPKeyChange, 1)
	d.ports.pkeys[1].Load().asked.Store(-int64(time.Hour))
	if index, key, err := q.partition("Init", 1); index != 0 || key != 0 || err != nil {
		t.Errorf("after an event: %d, %#x, %v, want entry 0", index, key, err)
	}
}
