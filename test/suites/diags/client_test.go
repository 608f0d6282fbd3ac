package diags

import (
	"errors"
	"os"
	"os/exec"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/goverbs/goverbs/test/testenv"
	"github.com/goverbs/goverbs/uverbs/ib"
	"github.com/goverbs/goverbs/uverbs/umad"
	"github.com/goverbs/goverbs/uverbs/umad/mad"
	"github.com/goverbs/goverbs/uverbs/umad/sa"
)

// client returns a client of the subnet administrator on the first card.
func client(t *testing.T, o sa.Options) *sa.Client {
	t.Helper()
	p, err := umad.Open(cards[0], 1)
	if err != nil {
		t.Fatal(err)
	}
	c, err := sa.NewClient(p, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := errors.Join(c.Close(), p.Close()); err != nil {
			t.Error(err)
		}
	})
	return c
}

// withService calls a function while a service is announced.
func withService(t *testing.T, do func()) {
	t.Helper()
	c := client(t, sa.Options{})
	nodes, err := sa.Table(t.Context(), c, &mad.NodeRecord{}, 0)
	if err != nil || len(nodes) != len(cards) {
		t.Fatalf("%d nodes, %v", len(nodes), err)
	}
	guid := nodes[0].NodeInfo.PortGUID
	s := mad.ServiceRecord{ServiceID: 0x1000_4712, ServicePKey: 0xffff, ServiceLease: 60, ServiceName: "diags", ServiceGID: ib.GID{0: 0xfe, 1: 0x80}}
	for i := range 8 {
		s.ServiceGID[8+i] = byte(guid >> (56 - 8*i))
	}
	s.ServiceData8[15], s.ServiceData16[7], s.ServiceData32[3], s.ServiceData64[1] = 1, 0xabcd, 1<<31, 1<<63
	const key = mad.ServiceID | mad.ServiceGID | mad.ServicePKey
	if _, err := c.Do(t.Context(), mad.MethodSet, &s, key|mad.ServiceLease|mad.ServiceKey|mad.ServiceName|mad.ServiceData); err != nil {
		t.Fatal(err)
	}
	do()
	if _, err := c.Do(t.Context(), mad.MethodDelete, &s, key); err != nil {
		t.Error(err)
	}
}

// TestManyRequests: more requests at once than the kernel lets an agent have outstanding.
func TestManyRequests(t *testing.T) {
	l := lids(t)
	c := client(t, sa.Options{Window: 64, Timeout: 20 * time.Second})
	var wg sync.WaitGroup
	for i := range 64 {
		wg.Go(func() {
			lid := l[i%2]
			if r, err := sa.Table(t.Context(), c, &mad.NodeRecord{LID: lid}, mad.NodeLID); err != nil || len(r) != 1 || r[0].LID != lid {
				t.Errorf("%v, %v", r, err)
			}
		})
	}
	wg.Wait()
}

// takeover asks for records in a loop while another subnet manager takes over.
func takeover(t *testing.T, l []uint16, change func()) {
	t.Helper()
	c := client(t, sa.Options{Timeout: 500 * time.Millisecond, Tries: 1})
	ask := func() error {
		r, err := sa.Table(t.Context(), c, &mad.NodeRecord{}, 0)
		if err == nil && len(r) != len(l) {
			t.Logf("%d nodes", len(r)) // the new one has not found all yet
		}
		return err
	}
	if err := ask(); err != nil {
		t.Fatal(err)
	}
	stop, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		for failed := 0; ; {
			err := ask()
			var status *mad.StatusError
			switch {
			case err == nil:
			case errors.Is(err, os.ErrDeadlineExceeded), errors.Is(err, sa.ErrNoSM), errors.As(err, &status):
				failed++
			default:
				t.Errorf("while there is no subnet manager: %v", err)
			}
			select {
			case <-stop:
				if t.Logf("%d requests failed meanwhile", failed); failed == 0 {
					t.Error("no request failed without a subnet manager")
				}
				return
			case <-time.After(10 * time.Millisecond):
			}
		}
	}()
	defer func() { close(stop); <-ended }()
	change()
	for deadline := time.Now().Add(30 * time.Second); ; time.Sleep(100 * time.Millisecond) {
		if err := ask(); err == nil {
			break
		} else if time.Now().After(deadline) {
			t.Errorf("the client does not find the new subnet manager: %v", err)
			break
		}
	}
}

// BenchmarkFlood has both programs send pings one after the other, with start and end. This program
// takes the time of each by its own clock, since ibping's is wrong.
func BenchmarkFlood(b *testing.B) {
	testenv.Boot(b, "GOVERBS_SM", "fabric/diags")
	const server = 1
	serve := exec.Command("ibping", "-S", "-C", cards[server])
	if err := serve.Start(); err != nil {
		b.Fatal(err)
	}
	defer func() { serve.Process.Kill(); serve.Wait() }()
	lid := strconv.Itoa(2)
	for _, c := range []struct {
		name string
		line []string
	}{
		{"verbs", []string{verbs(), "ib", "ping", "-d", cards[0], "-f", "-q", lid, "-c"}},
		{"ibping", []string{"ibping", "-C", cards[0], "-f", lid, "-c"}},
	} {
		b.Run(c.name, func(b *testing.B) {
			if out, err := exec.Command(c.line[0], append(c.line[1:len(c.line):len(c.line)], strconv.Itoa(b.N))...).CombinedOutput(); err != nil {
				b.Fatalf("%v\n%s", err, out)
			}
		})
	}
}
