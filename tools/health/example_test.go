package health_test

import (
	"context"
	"fmt"
	"log"
	"strings"

	"github.com/goverbs/goverbs/tools/health"
)

// The agent of a node logs what happens to its RDMA devices, also over restarts of its own.
func ExampleWatch() {
	watch, err := health.NewWatch(health.WatchOptions{State: "/var/lib/agent/rdma.json"})
	if err != nil {
		log.Fatal(err)
	}
	err = watch.Run(context.Background(), func(c health.Change) {
		log.Printf("%s: %s: %s%s %q", c.State, c.Level, c.Subject(), c.Title, c.Evidence)
	})
	log.Fatal(err)
}

// A program that cannot use RDMA says why.
func ExampleExamine() {
	report := health.Examine(context.Background())
	if report.Works {
		return
	}
	for _, f := range report.Findings {
		if f.Level == health.LevelError {
			fmt.Printf("%s: %s%s; to fix it: %s\n", f.Code, f.Subject(), f.Title, strings.Join(f.Fix, ", or "))
		}
	}
}
