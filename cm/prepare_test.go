package cm

import (
	"errors"
	"runtime"
	"syscall"
	"testing"
	"time"

	"github.com/goverbs/goverbs/test/testenv"
	"github.com/goverbs/goverbs/uverbs"
)

// TestPrepare: a listener registers a table once, after an attempt that fails, and all of its peers read it,
// also when for a while there was no connection.
func TestPrepare(t *testing.T) {
	ctx := within(t)
	var mr *uverbs.MR
	var prepared int
	broken, fails := errors.New("no table"), true
	var told refusals
	l := newListener(t, ListenOptions{Refused: told.add, Prepare: func(pd *uverbs.PD) (data []byte, err error) {
		if fails {
			return nil, broken
		}
		prepared++
		if mr, err = pd.RegSlice([]byte("the table"), uverbs.AccessLocalWrite|uverbs.AccessRemoteRead); err != nil {
			return nil, err
		}
		return RemoteOf(mr).MarshalBinary()
	}})
	_, err := Dial(ctx, l.Addr().String(), DialOptions{})
	expectRefusal(t, "a failed Prepare", err, refusedFailed)
	if all := told.list(); len(all) == 0 || !errors.Is(all[0], broken) {
		t.Errorf("the program was told %v", all)
	}
	fails = false
	for range 3 {
		client, server := connect(t, l, DialOptions{})
		var remote Remote
		must(t, remote.UnmarshalBinary(client.PrivateData()))
		near := value(client.PD().RegSlice(make([]byte, 9), uverbs.AccessLocalWrite))(t)
		must(t, client.RDMARead(ctx, near.SGE(0, 9), remote))
		if string(near.Bytes()) != "the table" {
			t.Errorf("the peer has read %q", near.Bytes())
		}
		must(t, client.Close(), server.Close(), near.Close())
		time.Sleep(2 * idleGrace) // without a connection
	}
	if prepared != 1 {
		t.Errorf("Prepare was called %d times", prepared)
	}
	must(t, l.Close(), mr.Close())
}

// TestPrepareOrCheck: Check decides first, and what it returns is sent instead of what Prepare returns.
func TestPrepareOrCheck(t *testing.T) {
	ctx := within(t)
	long := true
	o := ListenOptions{PrivateData: []byte("plain"), Check: func(r *Request) ([]byte, error) {
		switch string(r.PrivateData) {
		case "stranger":
			return nil, errors.New("go away")
		case "special":
			return []byte("checked"), nil
		}
		return nil, nil
	}, Prepare: func(*uverbs.PD) ([]byte, error) {
		if long {
			return make([]byte, MaxAcceptData+1), nil
		}
		return []byte("prepared"), nil
	}}
	var told refusals
	o.Refused = told.add
	l := newListener(t, o)
	var arg *ArgError
	if _, err := Dial(ctx, l.Addr().String(), DialOptions{}); !errors.Is(err, syscall.ECONNREFUSED) || len(told.list()) != 1 || !errors.As(told.list()[0], &arg) {
		t.Errorf("data of Prepare that is too long: %v, and the program was told %v", err, told.list())
	}
	long = false
	for i, want := range []string{"prepared", "checked", "", "prepared"} {
		says := []string{"", "special", "stranger", ""}[i]
		if want == "" {
			if _, err := Dial(ctx, l.Addr().String(), DialOptions{PrivateData: []byte(says)}); !errors.Is(err, syscall.ECONNREFUSED) {
				t.Error(err)
			}
			continue
		}
		if client, _ := connect(t, l, DialOptions{PrivateData: []byte(says)}); string(client.PrivateData()) != want {
			t.Errorf("the peer that says %q got %q, want %q", says, client.PrivateData(), want)
		}
	}
	o.Isolation = ConnPD // memory of a connection that nobody accepts would stay
	if _, err := Listen(ctx, l.Addr().String(), o); !errors.As(err, &arg) || arg.Field != "Prepare" {
		t.Errorf("Prepare with ConnPD: %v", err)
	}
}

// TestPrepareForgets: a listener keeps nothing of PDs that are closed.
func TestPrepareForgets(t *testing.T) {
	testenv.Guest(t)
	dev := value(uverbs.OpenFirst())(t)
	defer dev.CloseAll()
	l := &Listener{o: ListenOptions{Prepare: func(*uverbs.PD) ([]byte, error) { return nil, nil }}}
	for range 20 {
		pd := value(dev.AllocPD())(t)
		value(l.prepare(pd))(t)
		must(t, pd.Close())
		runtime.GC()
	}
	if len(l.prepared) > 2 {
		t.Errorf("the listener keeps %d PDs", len(l.prepared))
	}
}
