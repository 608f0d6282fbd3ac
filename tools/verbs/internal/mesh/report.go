package mesh

import "time"

// Report is what a run has found.
type Report struct {
	Schema       int           `json:"schema"` // 1; raised when a field changes its meaning
	Time         time.Time     `json:"time"`   // when the run began
	Options      Options       `json:"options"`
	OK           bool          `json:"ok"`                    // there is no finding, and the run was not interrupted
	Interrupted  bool          `json:"interrupted,omitempty"` // the report has only the measurements before
	Hosts        []HostReport  `json:"hosts"`
	Thresholds   Thresholds    `json:"thresholds"`
	Medians      []Median      `json:"medians"`
	Findings     []Finding     `json:"findings"`
	Measurements []Measurement `json:"measurements"`
}

// Options are the settings of a run, beside its thresholds.
type Options struct {
	Types      []string `json:"types"`
	FlowLabels []int    `json:"flow_labels"`
	Iterations int      `json:"iterations"` // messages of a latency test
	Messages   int      `json:"messages"`   // messages of a bandwidth test
	Size       int      `json:"msg_size"`   // of messages of a bandwidth test, in bytes; over ud at most the MTU
	Events     bool     `json:"events"`
}

// Schema is the schema of Report.
const Schema = 1

// HostReport is a host of the fleet.
type HostReport struct {
	Name  string       `json:"name"`            // as it was given
	Error string       `json:"error,omitempty"` // why it takes no part
	Rails []RailReport `json:"rails"`
}

// RailReport is a device of a host.
type RailReport struct {
	Name   string `json:"name"`
	Driver string `json:"driver"`
	Error  string `json:"error,omitempty"` // why it takes no part
}

// Thresholds are what a measurement is held against. Zero is no threshold.
type Thresholds struct {
	MaxLatency     float64 `json:"max_latency_us,omitempty"` // of the median
	MaxP99         float64 `json:"max_p99_us,omitempty"`
	MinBandwidth   float64 `json:"min_bandwidth_gbit_per_s,omitempty"`
	MaxLoss        float64 `json:"max_loss_percent"`
	LatencyRatio   float64 `json:"latency_ratio"`   // most of a median latency, by the fleet's
	BandwidthRatio float64 `json:"bandwidth_ratio"` // least of a bandwidth, by the fleet's
}

// Median is what is usual in the fleet for a type of queue pair.
type Median struct {
	Type      string  `json:"type"`
	Latency   float64 `json:"latency_us"` // of the median latencies
	Bandwidth float64 `json:"gbit_per_s"`
}

// Measurement is what was measured in one direction, from the client to the server of the tests.
type Measurement struct {
	From      string   `json:"from"`
	To        string   `json:"to"`
	Rail      string   `json:"rail"`
	Type      string   `json:"type"`
	FlowLabel int      `json:"flow_label"`
	Round     int      `json:"round"`                // pairs of a round were tested at the same time
	Latency   *Latency `json:"latency,omitempty"`    // absent if the test failed
	Bandwidth *float64 `json:"gbit_per_s,omitempty"` // absent if the test failed
	Loss      float64  `json:"loss_percent"`         // of the messages of the bandwidth test over UD
	Errors    []string `json:"errors,omitempty"`     // why tests failed
	Problems  []string `json:"problems,omitempty"`   // "failed", "latency", "p99", "bandwidth" or "loss"
	Repeated  int      `json:"repeated,omitempty"`   // times that it was repeated, of which the best values count

	from, to int  // indices of the hosts
	finished bool // the context has not ended before the tests
}

// Latency is a distribution of half of the round trip times, in microseconds.
type Latency struct {
	Min    float64 `json:"min_us"`
	Median float64 `json:"median_us"`
	P99    float64 `json:"p99_us"`
	P999   float64 `json:"p99_9_us"`
	Max    float64 `json:"max_us"`
}

// Causes of findings.
const (
	CauseFleet = "fleet" // every link of the only rail
	CauseRail  = "rail"  // every link of a rail
	CauseHost  = "host"  // every link of a host, or it takes no part
	CausePort  = "port"  // every link of a host's device
	CauseLink  = "link"  // one link
	CausePath  = "path"  // a link with some flow labels
)

// Finding is a problem, with the likely cause that the measurements have in common.
type Finding struct {
	Cause      string   `json:"cause"`
	Hosts      []string `json:"hosts,omitempty"`       // one, or the two of a link
	Rail       string   `json:"rail,omitempty"`        // absent if all rails have the problem
	Direction  string   `json:"direction,omitempty"`   // of a link: "both", or the two hosts with -> between them
	FlowLabels []int    `json:"flow_labels,omitempty"` // of a path
	Problems   []string `json:"problems"`              // as those of measurements; "unreachable" and "missing" of hosts and ports
	Evidence   []string `json:"evidence"`
}
