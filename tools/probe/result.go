package probe

import (
	"net/netip"
	"slices"
	"sync"
	"time"
)

// Transport is how a probe travels.
type Transport string

// The transports.
const (
	UD Transport = "UD" // UD probes are datagrams, which the peer's program echoes. They show loss.
	RC Transport = "RC" // RC probes are RDMA READs of 8 bytes, which the peer's card answers by itself. They show latency.
)

// Cause is why probes count as lost.
type Cause string

// The causes.
const (
	Forward     Cause = "forward"     // The peer says that the ping has not arrived.
	Return      Cause = "return"      // The peer says that the ping has arrived, but no echo has come.
	Silent      Cause = "silent"      // Nothing has come from the peer since.
	Refused     Cause = "refused"     // The peer's host answers, but there no exporter does, or it refuses.
	Unreachable Cause = "unreachable" // The peer could not be asked: no answer, no route, no such address.
	Local       Cause = "local"       // This side failed: no device, no right, no memory, a full queue.
)

// causes are those that each transport has.
var causes = map[Transport][]Cause{
	UD: {Forward, Return, Silent, Refused, Unreachable, Local},
	RC: {Silent, Refused, Unreachable, Local},
}

// Bounds are the upper bounds of the buckets of a [Histogram]. A last bucket has what is above
// them.
var Bounds = bounds()

func bounds() (all [18]time.Duration) {
	for i := range all {
		all[i] = time.Microsecond << i
	}
	return all
}

// Histogram counts latencies. It is a plain value.
type Histogram struct {
	Counts [len(Bounds) + 1]uint64 // Counts are the latencies of each bucket, not cumulative.
	Sum    time.Duration           // Sum is the sum of all latencies.
}

// add adds a latency.
func (h *Histogram) add(d time.Duration) {
	i, _ := slices.BinarySearch(Bounds[:], d)
	h.Counts[i]++
	h.Sum += d
}

// Lost is how many probes were lost by a cause.
type Lost struct {
	Cause Cause  // Cause is why they count as lost.
	Count uint64 // Count is the number of probes since the path was first probed.
}

// Result is what was seen on a path to a peer since it was first probed. It is a plain value.
type Result struct {
	Peer      string     // Peer is the peer as it was given: a name or an address.
	Addr      netip.Addr // Addr is the address that is probed.
	Device    string     // Device is the local device; empty before it is known.
	Path      int        // Path is the number of the path, from 0.
	Transport Transport  // Transport is UD or RC.
	Up        bool       // Up says whether a probe was answered within the last few seconds.
	Sent      uint64     // Sent counts probes that were due, with those that are lost.
	Lost      []Lost     // Lost has each cause that the transport has.
	Latency   Histogram  // Latency has the round trips.
}

// counters are the counters of a path.
type counters struct {
	mu     sync.Mutex
	device string
	of     map[Transport]*stats
}

// stats are the counters of one transport of a path.
type stats struct {
	sent    uint64
	lost    map[Cause]uint64
	latency Histogram
	last    time.Time // of the last answer
}

func newCounters() *counters {
	return &counters{of: map[Transport]*stats{UD: {lost: map[Cause]uint64{}}, RC: {lost: map[Cause]uint64{}}}}
}

// sent counts probes that were due.
func (c *counters) sent(t Transport, n uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.of[t].sent += n
}

// lost counts those of them that are lost.
func (c *counters) lost(t Transport, n uint64, cause Cause) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.of[t].lost[cause] += n
}

// answered counts the answer to a probe; its latency counts unless it is negative.
func (c *counters) answered(t Transport, latency time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.of[t].last = time.Now()
	if latency >= 0 {
		c.of[t].latency.add(latency)
	}
}

// results returns the results of a path.
func (c *counters) results(r Result) (all []Result) {
	c.mu.Lock()
	defer c.mu.Unlock()
	r.Device = c.device
	for _, t := range []Transport{RC, UD} {
		s := c.of[t]
		r.Transport, r.Sent, r.Latency, r.Lost = t, s.sent, s.latency, nil
		r.Up = time.Since(s.last) < silence
		for _, cause := range causes[t] {
			r.Lost = append(r.Lost, Lost{cause, s.lost[cause]})
		}
		all = append(all, r)
	}
	return all
}
