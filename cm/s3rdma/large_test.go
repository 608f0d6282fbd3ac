//go:build unix

package s3rdma

import (
	"bytes"
	"fmt"
	"hash"
	"hash/crc64"
	"io"
	"net/http"
	"net/http/httptest"
	"syscall"
	"testing"
	"time"

	"github.com/goverbs/goverbs/test/testenv"
)

// memory is a server of one object in memory. Puts are only summed.
type memory struct {
	object []byte
	drop   bool   // what is put is not even summed
	sum    string // of what was put last
}

func (m *memory) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("ETag", `"object"`)
	if r.Method != http.MethodPut {
		http.ServeContent(w, r, "", time.Time{}, bytes.NewReader(m.object))
		return
	}
	var sum hash.Hash64 = crc64.New(nvme)
	var to io.Writer = sum
	if m.drop {
		to = io.Discard
	}
	if _, err := io.Copy(to, r.Body); err != nil {
		w.WriteHeader(http.StatusInternalServerError)
		return
	}
	m.sum = fmt.Sprint(sum.Sum64())
}

// serveMemory serves an object of n bytes.
func serveMemory(t testing.TB, r *rig, n int) (*Client, *memory) {
	m := &memory{object: make([]byte, n)}
	for i := range m.object {
		m.object[i] = byte(i*i>>8 ^ i>>20 ^ i)
	}
	s := httptest.NewServer(r.initiator.Handler(m, HandlerOptions{}))
	t.Cleanup(s.Close)
	return &Client{Endpoint: s.URL}, m
}

// TestLarge gets and puts an object of 1 GiB, and checks its sum.
func TestLarge(t *testing.T) {
	testenv.Boot(t, "GOVERBS_LARGE", "s3/large")
	const size = 1 << 30
	r := newRig(t, InitiatorOptions{Networks: everywhere})
	c, m := serveMemory(t, r, size)
	c.Timeout = 10 * time.Minute
	g := r.region(t, size)
	res, err := c.Get(t.Context(), "b/object", g, GetOptions{})
	if err != nil || !res.RDMA || res.N != size || !bytes.Equal(g.Bytes(), m.object) {
		t.Fatalf("Get returns %+v, %v, or other data", res, err)
	}
	res, err = c.Put(t.Context(), "b/object", g, size, PutOptions{})
	if err != nil || !res.RDMA || m.sum != fmt.Sprint(crc64.Checksum(m.object, nvme)) {
		t.Fatalf("Put returns %+v, %v, or other data", res, err)
	}
}

// BenchmarkObjects gets and puts an object by RDMA and by the body, in turn. It reports the
// processor time of client and server together for a GiB of each, the ratio, and the throughputs.
func BenchmarkObjects(b *testing.B) {
	for _, size := range []int{64 << 10, 1 << 20, 64 << 20} {
		for _, method := range []string{"GET", "PUT"} {
			b.Run(fmt.Sprintf("%s/%d KiB", method, size>>10), func(b *testing.B) {
				r := newRig(b, InitiatorOptions{Networks: everywhere})
				c, m := serveMemory(b, r, size)
				m.drop = true
				g := r.region(b, size)
				var used, took [2]time.Duration
				once := func(body bool) {
					c.BodyOnly = body
					var res Result
					var err error
					if method == "GET" {
						res, err = c.Get(b.Context(), "b/object", g, GetOptions{Length: size})
					} else {
						res, err = c.Put(b.Context(), "b/object", g, size, PutOptions{})
					}
					if err != nil || res.RDMA == body {
						b.Fatalf("%+v, %v", res, err)
					}
				}
				once(false)
				once(true)
				for b.Loop() {
					for way := range used {
						before, begin := processorTime(b), time.Now()
						for range max(1, 4<<20/size) {
							once(way == 1)
						}
						took[way] += time.Since(begin)
						used[way] += processorTime(b) - before
					}
				}
				per := float64(b.N) * float64(max(size, 4<<20)) / (1 << 30)
				b.ReportMetric(0, "ns/op")
				b.ReportMetric(used[0].Seconds()*1e3/per, "ms/GiB-RDMA")
				b.ReportMetric(used[1].Seconds()*1e3/per, "ms/GiB-body")
				b.ReportMetric(per*1024/took[0].Seconds(), "MiB/s-RDMA")
				b.ReportMetric(per*1024/took[1].Seconds(), "MiB/s-body")
				b.ReportMetric(used[0].Seconds()/used[1].Seconds(), "RDMA/body")
			})
		}
	}
}

// processorTime returns the processor time of this process.
func processorTime(b *testing.B) time.Duration {
	b.Helper()
	var u syscall.Rusage
	testenv.Must(b, syscall.Getrusage(syscall.RUSAGE_SELF, &u))
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
