// Package metrics collects metrics of RDMA on this host, in Prometheus' text format: devices, ports and
// their counters, objects by process, container and network namespace, events, and the findings of package
// health. The command "verbs exporter" serves them, and "verbs help metrics" describes them. An agent that has
// an HTTP server needs no second program:
//
//	c := metrics.New(metrics.Options{DoctorInterval: time.Minute})
//	http.HandleFunc("/metrics", func(w http.ResponseWriter, r *http.Request) {
//		w.Header().Set("Content-Type", metrics.ContentType)
//		c.WriteTo(w)
//	})
//
// [Families] lists the metrics. Their names and labels stay the same from one version to the next.
//
// A value that cannot be read does not affect the others. Devices are read at the same time, each
// by parts of its own: a part that fails is missing, and rdma_exporter_collector_success is 0 for
// it. A part that the kernel or the driver does not have is missing without a failure. A device
// that does not answer within a few seconds is left out until it does. One that is removed
// meanwhile is left out, too.
//
// It needs no rights, except that MTUs need those to open a device, and the network namespace
// of other users' processes those to trace them. It sees the devices of the network namespace and the processes of the
// PID namespace that it is in.
package metrics
