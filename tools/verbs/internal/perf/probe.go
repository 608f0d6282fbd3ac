package perf

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"net/netip"
	"strings"
	"sync"
	"time"

	"github.com/goverbs/goverbs/tools/verbs/internal/peertext"
	"github.com/goverbs/goverbs/uverbs"
	"github.com/goverbs/goverbs/uverbs/ib"
)

// A server with a secret, or at a pipe, also takes two requests of somebody who coordinates tests between servers, each
// instead of hello on a connection of its own:
//
//	inventory               →
//	                        ←  rails {devices of the server}
//
//	probe {peer, config}    →
//	                        (the server plays the client of a test with another server)
//	                        ←  probed {result, or error}

// Rail is a device of a server that tests can run on.
type Rail struct {
	Device string `json:"device"`
	Driver string `json:"driver"`
	Port   uint8  `json:"port"` // the first active one; 0 if none is
	GID    ib.GID `json:"gid"`  // zero on InfiniBand without a subnet prefix, and on iWARP
	IWARP  bool   `json:"iwarp,omitempty"`
	MTU    int    `json:"mtu"`             // active MTU in bytes
	Error  string `json:"error,omitempty"` // why no test can run on it
}

// Probe is a test that a server runs as the client of another one.
type Probe struct {
	Host       string `json:"host"` // of the other server
	Port       int    `json:"port"` // 0: through the coordinator
	Device     string `json:"device"`
	PeerDevice string `json:"peer_device"`
	PeerGID    ib.GID `json:"peer_gid"`
	Config     Config `json:"config"` // with one size

	Pipe *Pipe `json:"-"` // Pipe leads to the other server, if Remote has one as well; Port is 0 then.
}

// Limits of these messages.
const (
	maxRails = 64
	// railsFrame is the limit of the frame with them: errors may take 6 bytes for each of theirs.
	railsFrame = maxRails * 4 << 10
	maxHost    = 253 // the longest name in the DNS
	maxMicro   = 1e12
)

// probeTime bounds a probe, beside the time that its config asks for. Tests shorten it.
var probeTime = 2 * time.Minute

// validate checks a probe.
func (p *Probe) validate() error {
	if p.Host == "" || len(p.Host) > maxHost || strings.ContainsFunc(p.Host, func(r rune) bool { return r <= ' ' || r > '~' }) {
		return refusef("host is %s, allowed: a name or an address of up to %d characters", peertext.Quote(p.Host), maxHost)
	}
	if n := len(p.Config.Sizes); n != 1 {
		return refusef("a probe has %d sizes, allowed: 1", n)
	}
	return cmp.Or(
		within("port", p.Port, 0, math.MaxUint16),
		validName("device", p.Device), validName("peer_device", p.PeerDevice),
		refuse(p.Config.Validate()),
	)
}

// validName checks the name of a device.
func validName(field, name string) error {
	if name == "" || len(name) > maxName || strings.ContainsFunc(name, func(r rune) bool { return r <= ' ' || r > '~' }) {
		return refusef("%s is %s, allowed: 1 to %d printable ASCII characters", field, peertext.Quote(name), maxName)
	}
	return nil
}

// validateRails checks the devices of a server.
func validateRails(rails []Rail) error {
	if err := within("number of rails", len(rails), 0, maxRails); err != nil {
		return err
	}
	for i := range rails {
		r := &rails[i]
		err := cmp.Or(validName("device", r.Device), validName("driver", r.Driver), within("mtu", r.MTU, 0, 1<<16), within("length of error", len(r.Error), 0, maxError))
		if err != nil {
			return err
		}
	}
	return nil
}

// validateProbed checks the result of a probe.
func (m *message) validateProbed() error {
	s := m.Result
	if m.Error != "" && s == nil {
		return within("length of error", len(m.Error), 0, maxError)
	}
	if s == nil || (s.Latency == nil) == (s.Bandwidth == nil) {
		return refusef("probed has no result, or not exactly one of latency and bandwidth")
	}
	numbers := []float64{s.Seconds, s.ClientCPU, s.ServerCPU}
	if l := s.Latency; l != nil {
		numbers = append(numbers, l.Min, l.Median-l.Min, l.P99-l.Median, l.P999-l.P99, l.Max-l.P999, l.Average, l.Stdev)
	} else {
		numbers = append(numbers, s.Bandwidth.MiBPerSecond, s.Bandwidth.GbitPerSecond, s.Bandwidth.MessagesPerSecond)
	}
	for _, v := range numbers {
		if !(v >= 0 && v < maxMicro) {
			return refusef("a number of a result is %g, allowed: 0 to %g, and quantiles in their order", v, maxMicro)
		}
	}
	return cmp.Or(within("iterations", s.Iterations, 0, maxOutcome), within("lost", s.Lost, 0, maxOutcome))
}

// rails lists the devices of this machine.
func rails() (all []Rail, err error) {
	infos, err := uverbs.Devices()
	if err != nil {
		return nil, err
	}
	for _, i := range infos[:min(len(infos), maxRails)] {
		r := Rail{Device: i.Name, Driver: i.Driver, IWARP: i.IWARP()}
		if err := r.look(); err != nil {
			r.Error = clip(err.Error())
		}
		all = append(all, r)
	}
	return all, nil
}

// clip shortens a text to what a message may hold.
func clip(text string) string { return text[:min(len(text), maxError)] }

// look asks the device.
func (r *Rail) look() (err error) {
	dev, port, err := OpenDevice(Local{Device: r.Device, GID: Auto, CPU: Auto}, netip.Addr{})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, dev.Close()) }()
	attr, err := dev.Port(port)
	if err != nil {
		return err
	}
	r.Port, r.MTU = port, attr.ActiveMTU.Bytes()
	table, err := dev.GIDTable(port)
	if err != nil || r.IWARP {
		return err
	}
	if entry, ok := uverbs.ChooseGID(table, ib.GID{}); ok {
		r.GID = entry.GID
	}
	return nil
}

// coordinate serves a request of a coordinator.
func (se *session) coordinate(ctx context.Context, m message) error {
	if m.Kind == kindInventory {
		all, err := rails()
		if err != nil {
			return refuse(err) // the coordinator has the secret, and may know
		}
		se.what = "listed its devices"
		return se.put(message{Kind: kindRails, Rails: all})
	}
	p := m.Probe
	se.what = fmt.Sprintf("probe of %s on %s: %s over %s", address(p.Host, p.Port), p.Device, p.Config.Name(), p.Config.Type)
	se.limited.log("%s begins: %s", se.name, se.what)
	report, err := se.probe(ctx, p)
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if err != nil {
		return se.put(message{Kind: kindProbed, Error: clip(err.Error())})
	}
	s := report.Results[0]
	if s.Latency != nil {
		s.Latency.Histogram = nil // it has no limit
	}
	return se.put(message{Kind: kindProbed, Result: &s})
}

// probe runs a test.
func (se *session) probe(ctx context.Context, p *Probe) (*Report, error) {
	if (p.Port == 0) != (se.limited.coordinator != nil) {
		return nil, refusef("port is %d, allowed: 0 of a server that the coordinator has started, and 1 to %d of others", p.Port, math.MaxUint16)
	}
	local := Local{Device: p.Device, GID: Auto, CPU: Auto}
	dev := &devices{server: se.limited, device: p.Device}
	limits, err := dev.limits(netip.Addr{})
	if err != nil {
		return nil, err
	}
	room := footprint(&p.Config, limits)
	if err := se.limited.take(room); err != nil {
		return nil, err
	}
	defer se.limited.give(room)
	ctx, cancel := context.WithTimeoutCause(ctx, p.Config.Duration+probeTime, fmt.Errorf("the test has taken more than %s", p.Config.Duration+probeTime))
	defer cancel()
	cl := &Client{Config: p.Config, Local: local, Host: p.Host, Port: p.Port, Secret: se.limited.Secret, PeerDevice: p.PeerDevice, PeerGID: p.PeerGID}
	if p.Port == 0 {
		cl.via = se.limited.coordinator
	}
	return cl.Run(ctx)
}

// Remote is a server with a secret or behind a pipe, as a coordinator sees it.
type Remote struct {
	Host   string
	Port   int
	Secret []byte
	Pipe   *Pipe // Pipe leads to the server, which has neither Port nor Secret; nil is TCP.
}

// request sends a message and waits for the answer.
func (r *Remote) request(ctx context.Context, m message, kind string, timeout time.Duration) (message, error) {
	addr := address(r.Host, r.Port)
	conn, err := dialServer(ctx, addr, r.Secret, r.Pipe)
	if err != nil {
		return message{}, err
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	defer context.AfterFunc(ctx, func() { conn.Close() })()
	c := &control{conn: conn, name: "server " + addr, inbox: make(chan received, inboxRoom), cancel: cancel, frame: railsFrame}
	c.end = func(int64) error { return c.outOfOrder(kindFinished, "") }
	defer c.start()()
	if err := c.put(m); err != nil {
		return message{}, err
	}
	return c.take(ctx, timeout, kind)
}

// Rails lists the server's devices.
func (r *Remote) Rails(ctx context.Context) ([]Rail, error) {
	m, err := r.request(ctx, message{Kind: kindInventory}, kindRails, 2*answerTime)
	return m.Rails, err
}

// Probe has the server run a test as the client of another server. An error of the test is a *ProbeError, and one
// of a server that cannot be reached or does not answer a *NoAnswerError.
func (r *Remote) Probe(ctx context.Context, p Probe) (*Size, error) {
	if err := p.validate(); err != nil {
		return nil, err
	}
	if r.Pipe != nil {
		joined, stop := context.WithCancel(ctx)
		var over sync.WaitGroup
		over.Go(func() { join(joined, r.Pipe, p.Pipe) })
		defer over.Wait()
		defer stop()
	}
	m, err := r.request(ctx, message{Kind: kindProbe, Probe: &p}, kindProbed, p.Config.Duration+probeTime+2*answerTime)
	if _, refused := errors.AsType[*PeerError](err); refused {
		return nil, err
	} else if err != nil {
		return nil, &NoAnswerError{err}
	}
	if m.Result == nil {
		return nil, &ProbeError{Text: m.Error}
	}
	if lat := p.Config.Metric == Lat; lat != (m.Result.Latency != nil) {
		return nil, fmt.Errorf("server %s: the result is not one of %s", r.Host, p.Config.Name())
	}
	return m.Result, nil
}

// NoAnswerError is the error of a server that cannot be reached or has not answered.
type NoAnswerError struct{ Err error }

// Error and Unwrap implement error.
func (e *NoAnswerError) Error() string { return e.Err.Error() }
func (e *NoAnswerError) Unwrap() error { return e.Err }

// ProbeError is why a test between two servers has failed.
type ProbeError struct {
	Text string // Text is what the server says.
}

// Error implements error.
func (e *ProbeError) Error() string { return peertext.Quote(e.Text) }
