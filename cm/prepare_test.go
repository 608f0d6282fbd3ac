package cm

import (
	"errors"
	"syscall"
	"testing"
	"time"

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

// TestPrepareForEach: with ConnPD, Prepare is called with the PD of each connection. Check decides first, and what it
// returns is sent instead.
func TestPrepareForEach(t *testing.T) {
	ctx := within(t)
	var pds []*uverbs.PD
	l := newListener(t, ListenOptions{ConnOptions: ConnOptions{Isolation: ConnPD}, PrivateData: []byte("plain"), Check: func(r *Request) ([]byte, error) {
		switch string(r.PrivateData) {
		case "stranger":
			return nil, errors.New("go away")
		case "special":
			return []byte("checked"), nil
		}
		return nil, nil
	}, Prepare: func(pd *uverbs.PD) ([]byte, error) {
		pds = append(pds, pd)
		return []byte("prepared"), nil
	}})
	for i, want := range []string{"prepared", "checked", "", "prepared"} {
		says := []string{"", "special", "stranger", ""}[i]
		if want == "" {
			if _, err := Dial(ctx, l.Addr().String(), DialOptions{PrivateData: []byte(says)}); !errors.Is(err, syscall.ECONNREFUSED) {
				t.Error(err)
			}
			continue
		}
		client, server := connect(t, l, DialOptions{PrivateData: []byte(says)})
		if string(client.PrivateData()) != want {
			t.Errorf("the peer that says %q got %q, want %q", says, client.PrivateData(), want)
		}
		if want == "prepared" && server.PD() != pds[len(pds)-1] {
			t.Error("Prepare has got another PD than the connection's")
		}
	}
	if len(pds) != 2 || pds[0] == pds[1] {
		t.Errorf("Prepare was called with %d PDs", len(pds))
	}
}
