package netlinkrdma_test

import (
	"errors"
	"fmt"
	"io/fs"
	"log"
	"os"

	"github.com/goverbs/goverbs/netlinkrdma"
)

// A table of all ports, as "rdma link" prints it.
func Example() {
	devs, err := netlinkrdma.Devices()
	if err != nil {
		log.Fatal(err)
	}
	for _, dev := range devs {
		ports, err := netlinkrdma.Ports(dev)
		for _, p := range ports {
			fmt.Printf("%s/%d state %s physical_state %s netdev %s\n", dev.Name, p.Num, p.State, p.PhysState, p.Netdev)
		}
		if err != nil {
			log.Print(err)
		}
	}
}

// A software RoCE device on eth0, made if it is not there.
func ExampleAddLink() {
	err := netlinkrdma.AddLink("rxe0", netlinkrdma.RXE, "eth0")
	if err != nil && !errors.Is(err, fs.ErrExist) {
		log.Fatal(err)
	}
}

// Opening the file that takes the commands for a device.
func ExampleUverbsDev() {
	dev, err := netlinkrdma.DeviceByName("rxe0")
	if err != nil {
		log.Fatal(err)
	}
	uverbs, err := netlinkrdma.UverbsDev(dev)
	if err != nil {
		log.Fatal(err)
	}
	f, err := os.OpenFile(uverbs.Path(), os.O_RDWR, 0)
	if err != nil {
		log.Fatal(err)
	}
	defer f.Close()
}
