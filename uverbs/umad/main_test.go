package umad

import (
	"os"
	"testing"

	"github.com/goverbs/goverbs/test/testenv"
)

func TestMain(m *testing.M) {
	os.Exit(testenv.MainFor(m, map[string]string{"rxe": lacking, "mlx5": lacking + lackingMLX5}))
}

// Tests of what devices on Ethernet, on InfiniBand, and modelled ConnectX cards do not support.
const (
	lacking = `
		roce  TestKernelSubnet: subnet management
		roce  TestKernelConcurrent: subnet management
		roce  TestKernelTimeout: subnet management
		roce  TestKernelCounters: subnet management
		roce  TestIbping: subnet management
		roce  TestKernelIsSM: subnet management
		ib    TestKernelNoQP0: ports without QP0`
	lackingMLX5 = `
		all   TestKernelRemoval: links that can be added`
)
