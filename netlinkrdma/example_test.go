package netlinkrdma_test

import (
	"context"
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

// Who has queue pairs on rxe0, and in which state.
func ExampleQPs() {
	dev, err := netlinkrdma.DeviceByName("rxe0")
	if err != nil {
		log.Fatal(err)
	}
	qps, err := netlinkrdma.QPs(dev, netlinkrdma.ListOptions{})
	if err != nil {
		log.Fatal(err)
	}
	for _, q := range qps {
		fmt.Printf("QP %d %s %s, peer %d, process %d %s\n", q.Num, q.Type, q.State, q.RemoteNum, q.PID, q.Kernel)
	}
}

// All counters of the first port.
func ExamplePortCounters() {
	dev, err := netlinkrdma.DeviceByName("rxe0")
	if err != nil {
		log.Fatal(err)
	}
	counters, err := netlinkrdma.PortCounters(dev, 1)
	if errors.Is(err, errors.ErrUnsupported) {
		log.Fatal("this driver does not count: ", err)
	}
	for _, c := range counters {
		fmt.Println(c.Name, c.Value)
	}
}

// Devices that come, until the context ends.
func ExampleMonitor() {
	m, err := netlinkrdma.OpenMonitor()
	if err != nil {
		log.Fatal(err) // a kernel before Linux 6.12, for example
	}
	defer m.Close()
	for {
		e, err := m.Next(context.Background())
		if errors.Is(err, netlinkrdma.ErrEventsLost) {
			continue
		}
		if err != nil {
			log.Fatal(err)
		}
		if e.Type == netlinkrdma.EventRegister {
			fmt.Println(e.Device, "is there")
		}
	}
}
