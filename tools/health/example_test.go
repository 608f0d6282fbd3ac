package health_test

import (
	"context"
	"fmt"
	"strings"

	"github.com/goverbs/goverbs/tools/health"
)

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
