package perf

import (
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/goverbs/goverbs/tools/internal/jsontext"
)

// Report is what a client prints as JSON: a run of all sizes.
type Report struct {
	Schema  int       `json:"schema"`        // 1; raised when a field changes its meaning
	Test    string    `json:"test"`          // such as send-lat
	Time    time.Time `json:"time,omitzero"` // when the test began
	Config  Config    `json:"config"`
	Client  Side      `json:"client"`
	Server  Side      `json:"server"`
	Results []Size    `json:"results"` // in the order of the sizes
}

// finished returns a report that has results, and nil otherwise.
func (r *Report) finished() *Report {
	if len(r.Results) == 0 {
		return nil
	}
	return r
}

// ReportSchema is the schema of Report.
const ReportSchema = 1

// Side is one of the two.
type Side struct {
	Device  string `json:"device"`
	Driver  string `json:"driver"`
	Address string `json:"control_address"` // IP address and port of the control connection
	GID     string `json:"gid,omitempty"`
	Inline  int    `json:"inline"` // largest message sent inline, in bytes

	Perftest string `json:"perftest,omitempty"` // version of perftest that it runs
}

// Size is the result for one message size.
type Size struct {
	Size       int        `json:"size"`       // in bytes
	Iterations int64      `json:"iterations"` // messages that count, of all queue pairs, of both directions
	Seconds    float64    `json:"seconds"`    // that they took
	Latency    *Latency   `json:"latency,omitempty"`
	Bandwidth  *Bandwidth `json:"bandwidth,omitempty"`
	Lost       int64      `json:"lost"`                // messages that did not come, warm-up included; of uc and ud
	ClientCPU  float64    `json:"client_cpu"`          // processor time of the client's process, own and kernel's, by time elapsed
	ServerCPU  float64    `json:"server_cpu"`          // the same of the server's, with that of its device if it is one in software; 0 of perftest's
	Verified   bool       `json:"verified"`            // data was compared, and was right
	Timeline   []Sample   `json:"intervals,omitempty"` // with --timeline
	Counters   []Counter  `json:"counters,omitempty"`  // how much they have grown on this side, in the order of --report-counters
}

// Bandwidth is what went through, of both directions together.
type Bandwidth struct {
	MiBPerSecond      float64 `json:"mib_per_s"`  // 2^20 bytes
	GbitPerSecond     float64 `json:"gbit_per_s"` // 10^9 bits
	MessagesPerSecond float64 `json:"messages_per_s"`
}

// NewBandwidth says how much went through.
func NewBandwidth(messages int64, size int, took time.Duration) Bandwidth {
	if took <= 0 {
		return Bandwidth{}
	}
	rate := float64(messages) / took.Seconds()
	return Bandwidth{rate * float64(size) / (1 << 20), rate * float64(size) * 8 / 1e9, rate}
}

// add adds the other direction.
func (b *Bandwidth) add(o Bandwidth) {
	b.MiBPerSecond += o.MiBPerSecond
	b.GbitPerSecond += o.GbitPerSecond
	b.MessagesPerSecond += o.MessagesPerSecond
}

// share returns a processor time by the time elapsed.
func share(cpu, took time.Duration) float64 {
	if took <= 0 {
		return 0
	}
	return cpu.Seconds() / took.Seconds()
}

// ReadReport reads a report.
func ReadReport(text []byte) (*Report, error) {
	rep := &Report{}
	if err := json.Unmarshal(text, rep); err != nil {
		return nil, fmt.Errorf("not a report of verbs perf: %w", jsontext.Explain(text, err))
	}
	switch {
	case rep.Schema != ReportSchema:
		return nil, fmt.Errorf("a report of schema %d, expected %d", rep.Schema, ReportSchema)
	case len(rep.Results) == 0:
		return nil, errors.New("a report without results")
	}
	return rep, nil
}

// Result puts together what the two sides have measured of one size; server is nil if the server
// does nothing in the test, or reports nothing.
func (c *Config) Result(size int, client *Run, server *Run) Size {
	s := Size{Size: size, Iterations: client.Sent, Seconds: client.Took.Seconds(), Verified: c.Verify, ClientCPU: share(client.CPU, client.Took), Counters: client.Counters}
	if server != nil {
		s.ServerCPU = share(server.CPU, server.Took)
		if c.messages() {
			s.Lost = max(client.AllSent-server.Received, 0)
			if c.Both {
				s.Lost += max(server.AllSent-client.Received, 0)
			}
		}
	}
	if c.Metric == Lat {
		s.Iterations = int64(len(client.Latencies))
		s.Latency = NewLatency(client.Latencies)
		return s
	}
	b := NewBandwidth(client.Sent, size, client.Took)
	if c.Both && server != nil {
		s.Iterations += server.Sent
		b.add(NewBandwidth(server.Sent, size, server.Took))
	}
	s.Bandwidth = &b
	return s
}
