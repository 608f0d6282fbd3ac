package metrics

import "slices"

// ContentType is the media type of the text format.
const ContentType = "text/plain; version=0.0.4; charset=utf-8"

// Type is the type of a metric.
type Type string

// The types.
const (
	Counter Type = "counter" // it grows until the device or the exporter ends
	Gauge   Type = "gauge"

	// A Histogram is written as series whose names have the endings _bucket, with the label le, _sum and _count.
	Histogram Type = "histogram"
)

// Family is a metric: all time series with its name. It is a plain value.
type Family struct {
	Name   string   // Name is the metric's name.
	Type   Type     // Type is counter, gauge or histogram.
	Help   string   // Help says in a line what the value is.
	Labels []string // Labels are the names of the labels, which every series has.
}

// Families returns all metrics, in the order of the output. A metric without a series is left out there.
func Families() []Family {
	all := slices.Clone(families[:])
	for i := range all {
		all[i].Labels = slices.Clone(all[i].Labels)
	}
	return all
}

// The metrics, by their index in families.
const (
	buildInfo = iota
	scrapeDuration
	collectorSuccess
	collectorErrors
	deviceInfo
	deviceObjects
	deviceQPs
	portInfo
	portState
	portPhysicalState
	portRate
	portLanes
	portMTU
	portCounters
	portReceived
	portTransmitted
	processObjects
	processRegistered
	events
	doctorWorks
	doctorLevel
	doctorDuration
	doctorLast
	watchLevel
	probeUp
	probeSent
	probeLost
	probeLatency
	probeSessions
	probeAnswers
	familyCount
)

var (
	ofPort    = []string{"device", "port"}
	ofProcess = []string{"device", "process", "pid", "container", "netns"}
	ofProbe   = []string{"device", "peer", "address", "path", "transport"}
)

var families = [familyCount]Family{
	buildInfo:         {"rdma_exporter_build_info", Gauge, "Always 1; the version of the exporter.", []string{"version", "goversion"}},
	scrapeDuration:    {"rdma_exporter_scrape_duration_seconds", Gauge, "Time that it took to collect these metrics.", nil},
	collectorSuccess:  {"rdma_exporter_collector_success", Gauge, "Whether a part of the metrics could be read.", []string{"collector", "device"}},
	collectorErrors:   {"rdma_exporter_errors_total", Counter, "Failures of a part of the metrics since the exporter started.", []string{"collector"}},
	deviceInfo:        {"rdma_device_info", Gauge, "Always 1; what a device is.", []string{"device", "driver", "protocol", "node_guid", "firmware", "in_process"}},
	deviceObjects:     {"rdma_device_objects", Gauge, "Objects of a device by type, with those of the kernel.", []string{"device", "type"}},
	deviceQPs:         {"rdma_device_qps", Gauge, "QPs of a device by transport and state.", []string{"device", "transport", "state"}},
	portInfo:          {"rdma_port_info", Gauge, "Always 1; where a port is attached.", []string{"device", "port", "netdev", "link_layer"}},
	portState:         {"rdma_port_state", Gauge, "State of a port: 1 DOWN, 2 INIT, 3 ARMED, 4 ACTIVE, 5 ACTIVE_DEFER.", ofPort},
	portPhysicalState: {"rdma_port_physical_state", Gauge, "State of a port's link: 1 sleep, 2 polling, 3 disabled, 4 training, 5 up, 6 error recovery, 7 test.", ofPort},
	portRate:          {"rdma_port_rate_bytes_per_second", Gauge, "Speed of all lanes of a port together.", ofPort},
	portLanes:         {"rdma_port_lanes", Gauge, "Lanes of a port.", ofPort},
	portMTU:           {"rdma_port_mtu_bytes", Gauge, "MTU of RDMA on a port.", ofPort},
	portCounters:      {"rdma_port_counters_total", Counter, "Counters of a port, under the names of the driver or of InfiniBand.", []string{"device", "port", "counter"}},
	portReceived:      {"rdma_port_received_bytes_total", Counter, "Bytes that a port has received (port_rcv_data).", ofPort},
	portTransmitted:   {"rdma_port_transmitted_bytes_total", Counter, "Bytes that a port has transmitted (port_xmit_data).", ofPort},
	processObjects:    {"rdma_process_objects", Gauge, "Objects of a device by type and owner.", []string{"device", "type", "process", "pid", "container", "netns"}},
	processRegistered: {"rdma_process_registered_bytes", Gauge, "Length of all MRs of an owner.", ofProcess},
	events:            {"rdma_events_total", Counter, "Events of devices, ports and addresses since the exporter started.", []string{"device", "port", "event"}},
	doctorWorks:       {"rdma_doctor_works", Gauge, "Whether a ping-pong within this host succeeded when the doctor last looked.", nil},
	doctorLevel:       {"rdma_doctor_finding_level", Gauge, "Finding of the doctor: 0 ok, 1 info, 2 warning, 3 error.", []string{"code", "device", "port"}},
	doctorDuration:    {"rdma_doctor_duration_seconds", Gauge, "Time that the doctor's last examination took.", nil},
	watchLevel:        {"rdma_watch_finding_level", Gauge, "Finding about what has changed: 1 info, 2 warning, 3 error. It is there while it holds.", []string{"code", "device", "port"}},
	probeUp:           {"rdma_probe_up", Gauge, "Whether a peer has answered a probe within the last 5 s.", ofProbe},
	probeSent:         {"rdma_probe_sent_total", Counter, "Probes of a peer that were due, with those that were lost.", ofProbe},
	probeLost:         {"rdma_probe_lost_total", Counter, "Probes that were not answered, by cause.", append(ofProbe[:len(ofProbe):len(ofProbe)], "cause")},
	probeLatency:      {"rdma_probe_latency_seconds", Histogram, "Round trips of probes.", ofProbe},
	probeSessions:     {"rdma_probe_sessions", Gauge, "Paths of other hosts whose probes are answered.", nil},
	probeAnswers:      {"rdma_probe_answers_total", Counter, "Probes of other hosts by what became of them here.", []string{"result"}},
	doctorLast:        {"rdma_doctor_last_run_timestamp_seconds", Gauge, "When the doctor's last examination ended.", nil},
}
