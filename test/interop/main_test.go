package interop

import (
	_ "embed"
	"os"
	"testing"

	"github.com/goverbs/goverbs/test/testenv"
)

// lackingMLX5 is what kernels lack with ConnectX adapters.
//
//go:embed lacking_mlx5.txt
var lackingMLX5 string

func TestMain(m *testing.M) {
	os.Exit(testenv.MainFor(m, map[string]string{"mlx5": lackingMLX5}))
}

// The guest's devices and the network interface of the first.
var (
	rig       = testenv.TheRig()
	dev0      = rig.Devices[0]
	dev1      = rig.Devices[1]
	netdev0   = rig.Netdevs[0]
	rdmaCore  = RdmaCore(rig.GID)
	rdmaCore6 = RdmaCore(rig.GID6)
)
