package rstream

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"net/http"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/goverbs/goverbs/cm/rsocket"
	"github.com/goverbs/goverbs/test/internal/program"
	"github.com/goverbs/goverbs/test/testenv"
)

// serve runs a web server until the end of the test, and returns its URL.
func serve(t *testing.T, l net.Listener, h http.HandlerFunc) (url string) {
	t.Helper()
	s := &http.Server{Handler: h}
	served := make(chan error, 1)
	go func() { served <- s.Serve(l) }()
	t.Cleanup(func() {
		s.Close()
		if err := <-served; err != http.ErrServerClosed {
			t.Error(err)
		}
	})
	return "http://" + l.Addr().String()
}

// largeSize is the size of a large body.
const largeSize = 1 << 30

// large makes a body of largeSize bytes, in blocks that begin with their number, and checks one. To hash it
// would take longer than to send it.
type large struct {
	at    int // bytes that were made or checked
	block [1 << 16]byte
}

// newLarge makes a body.
func newLarge() *large {
	b := new(large)
	for i := range b.block {
		b.block[i] = byte(i * i >> 7)
	}
	return b
}

// rest returns what is left of the current block.
func (b *large) rest() []byte {
	binary.BigEndian.PutUint64(b.block[:], uint64(b.at/len(b.block)))
	return b.block[b.at%len(b.block):]
}

// Read implements [io.Reader].
func (b *large) Read(p []byte) (int, error) {
	if b.at == largeSize {
		return 0, io.EOF
	}
	n := copy(p, b.rest())
	b.at += n
	return n, nil
}

// Write implements [io.Writer]. It fails at the first byte that is another one.
func (b *large) Write(p []byte) (n int, err error) {
	for n < len(p) {
		rest := b.rest()
		k := min(len(rest), len(p)-n)
		if b.at == largeSize || !bytes.Equal(rest[:k], p[n:n+k]) {
			return n, fmt.Errorf("another body in the %d bytes from %d on", k, b.at)
		}
		n += k
		b.at += k
	}
	return n, nil
}

// finish waits for a program that takes longer than others.
func finish(t *testing.T, p *program.Program) {
	t.Helper()
	const longest = 10 * time.Minute
	p.KeepRunning()
	select {
	case <-p.Ended:
		must(t, p.Err)
	case <-time.After(longest):
		t.Fatalf("%s has not ended after %s", p.Name, longest)
	}
}

// TestCurlLarge: curl and our web server with a body of 1 GiB, each way.
func TestCurlLarge(t *testing.T) {
	testenv.Guest(t)
	url := serve(t, listen(t, "8082", rsocket.Options{}), func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodGet {
			if _, err := io.Copy(w, newLarge()); err != nil {
				t.Error(err)
			}
			return
		}
		got := newLarge()
		_, err := io.Copy(got, r.Body)
		fmt.Fprintf(w, "%d %v", got.at, err)
	})
	speed := func(begin time.Time) { t.Logf("%.1f MiB/s", largeSize/(1<<20)/time.Since(begin).Seconds()) }
	t.Run("down", func(t *testing.T) {
		got := newLarge()
		defer speed(time.Now())
		finish(t, preloadBy(t, func(c *exec.Cmd) error {
			c.Stdout = got
			return c.Start()
		}, "curl", "-sS", url))
		if got.at != largeSize {
			t.Errorf("%d bytes arrive, want %d", got.at, largeSize)
		}
	})
	t.Run("up", func(t *testing.T) {
		defer speed(time.Now())
		p := preloadBy(t, func(c *exec.Cmd) error {
			c.Stdin = newLarge()
			return c.Start()
		}, "curl", "-sS", "-H", "Expect:", "-T", "-", url)
		finish(t, p)
		if got, want := p.Output(), fmt.Sprintf("%d <nil>", largeSize); got != want {
			t.Errorf("the server has got %q, want %q", got, want)
		}
	})
}

// TestCurlMany: 100 requests of as many curls, none of which is answered before all have arrived. On siw there
// are 10. A curl that waits for long does not sleep with librdmacm before 63, on any device: an rpoll that ends by its
// timeout still counts as one that waits, so that later ones call sched_yield in a loop, as strace shows (rdma-core
// has fixed it with a1747742e). The guest of siw has one processor, and 30 such curls leave the next one too
// little time for a handshake.
func TestCurlMany(t *testing.T) {
	testenv.Guest(t)
	many := 100
	if testenv.TheRig().Driver == "siw" {
		many = 10
	}
	var mu sync.Mutex
	arrived, all := map[string]bool{}, make(chan struct{}) // by path, since an attempt may fail
	url := serve(t, listen(t, "8083", rsocket.Options{}), func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		if arrived[r.URL.Path] = true; len(arrived) == many {
			select {
			case <-all:
			default:
				close(all)
			}
		}
		mu.Unlock()
		select {
		case <-all:
			fmt.Fprintln(w, r.URL.Path)
		case <-r.Context().Done():
		}
	})
	programs := make([]*program.Program, many) // curl -Z crashes with librspreload.so
	for i := range programs {                  // on a busy machine an answer may take longer than iWARP allows, 5 s
		programs[i] = preload(t, "curl", "-sS", "--retry", "5", fmt.Sprint(url, "/", i))
		programs[i].KeepRunning()
	}
	for i, p := range programs {
		finish(t, p)
		if got, want := p.Output(), fmt.Sprintf("/%d\n", i); got != want {
			t.Errorf("one of %d curls at once prints %q, want %q", many, got, want)
		}
	}
}

// TestIperf: iperf3's client, with librspreload.so, and a listener of ours that passes its
// connections on to iperf3's server over TCP. It sends, and it receives.
func TestIperf(t *testing.T) {
	testenv.Guest(t)
	const port, tcp = "5201", "5202"
	server := program.Launch(t, "iperf3", "-s", "--forceflush", "-B", "127.0.0.1", "-p", tcp)
	server.KeepRunning()
	server.Until(t, "listened", func() bool { return strings.Contains(server.Output(), "listening") })
	l := listen(t, port, rsocket.Options{})
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			up, err := net.Dial("tcp", "127.0.0.1:"+tcp)
			if err != nil {
				t.Error(err)
				return
			}
			for _, way := range [2][2]net.Conn{{c, up}, {up, c}} {
				go func() {
					io.Copy(way[0], struct{ io.Reader }{way[1]})
					c.Close()
					up.Close()
				}()
			}
		}
	}()
	for _, options := range []string{"", "-R", "-P 3"} {
		line := append([]string{"iperf3", "-c", address(), "-p", port, "-n", "8M"}, strings.Fields(options)...)
		out := preload(t, line...).Wait(t)
		if !strings.Contains(out, "iperf Done.") || strings.Contains(out, "error") {
			t.Errorf("iperf3 %s prints %s", options, out)
		}
	}
}
