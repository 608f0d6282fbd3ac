package probe_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"net/http"
	"net/netip"
	"os"
	"os/signal"
	"time"

	"github.com/goverbs/goverbs/tools/metrics"
	"github.com/goverbs/goverbs/tools/probe"
)

// A node agent probes the other nodes, answers them, serves the metrics, and takes its node out of
// service when most of the others do not answer over a device.
func ExampleProber() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	p, err := probe.New(probe.Options{
		Peers:  []string{"rdma-nodes.default.svc", "@/etc/agent/peers"},
		Rate:   250, // shows a loss of 0.05 % on a path within two minutes
		Paths:  4,
		Listen: fmt.Sprintf(":%d", probe.Port),
		Allow:  []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")},
		Warn:   func(err error) { log.Print(err) },
	})
	if err != nil {
		log.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { done <- p.Run(ctx) }()

	c := metrics.New(metrics.Options{Probe: p})
	server := &http.Server{Addr: ":9879", ReadHeaderTimeout: 10 * time.Second}
	http.HandleFunc("/metrics", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", metrics.ContentType)
		c.WriteTo(w)
	})
	go func() {
		if err := server.ListenAndServe(); !errors.Is(err, http.ErrServerClosed) {
			log.Print(err)
		}
	}()
	defer server.Close()

	for {
		select {
		case err := <-done: // nil after an interrupt
			if err != nil {
				log.Fatal(err)
			}
			return
		case <-time.After(10 * time.Second):
		}
		paths, down := map[string]int{}, map[string]int{}
		for _, r := range p.Results() {
			if r.Transport != probe.RC {
				continue
			}
			paths[r.Device]++
			if !r.Up {
				down[r.Device]++
			}
		}
		for device, n := range down {
			if 2*n > paths[device] {
				log.Printf("%s: %d of %d paths do not work, this node takes no new jobs", device, n, paths[device])
			}
		}
	}
}
