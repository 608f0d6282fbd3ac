package interop

import (
	_ "embed"
	"fmt"
	"os"
	"testing"

	"github.com/goverbs/goverbs/test/testenv"
)

// lacking is what kernels lack, lackingMLX5 with ConnectX adapters and lackingSiw with soft iWARP.
var (
	//go:embed lacking.txt
	lacking string
	//go:embed lacking_mlx5.txt
	lackingMLX5 string
	//go:embed lacking_siw.txt
	lackingSiw string
)

func TestMain(m *testing.M) {
	if what := os.Getenv(sandboxEnv); what != "" {
		if err := inSandbox(what); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	os.Exit(testenv.MainFor(m, map[string]string{"rxe": lacking, "mlx5": lackingMLX5, "siw": lackingSiw}))
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
