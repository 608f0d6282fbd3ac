package testenv

import (
	"fmt"
	"os"
	"strings"
	"syscall"
)

// The test bench of a modelled card is a part of its BAR 0, see bench.go of test/hca: a command is text, which a
// store to the first byte executes, and the answer takes its place.
const (
	benchOffset = 0x80000
	benchSize   = 0x1000
	benchText   = 8 // behind the byte that executes and two with the length of the text, little-endian
)

// Card is a modelled ConnectX card of this virtual machine (see [Modelled]), in which a test injects faults: lost
// packets, failed work requests and commands, a port that goes down, a card that dies. It is for one goroutine.
type Card struct {
	bar []byte
}

// OpenCard opens the test bench of an RDMA device: "mlx5_0". It maps the card's BAR 0, which needs
// root and lasts as long as the PCI device is there, whatever becomes of its driver.
func OpenCard(device string) (*Card, error) {
	f, err := os.OpenFile("/sys/class/infiniband/"+device+"/device/resource0", os.O_RDWR, 0)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	bar, err := syscall.Mmap(int(f.Fd()), benchOffset, benchSize, syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_SHARED)
	if err != nil {
		return nil, fmt.Errorf("map the test bench of %s: %w", device, err)
	}
	return &Card{bar: bar}, nil
}

// Close closes the test bench.
func (c *Card) Close() error { return syscall.Munmap(c.bar) }

// Do has the card execute a command, and gives its answer:
//
//	fatal                                  the card dies
//	well                                   and is as after power-on
//	link up|down                           the port's link
//	fail-command NAME STATUS SYNDROME SKIP TIMES
//	fail-wqe QPN send|recv SKIP SYNDROME VENDOR
//	fail-qp QPN | fail-cq CQN | fail-srq SRQN | fail-rq RQN
//	fail-cq-of QPN                         the CQ of a QP's sends
//	fail-migration QPN                     a peer's wish to migrate can't be followed
//	lid N | pkey INDEX VALUE | gid INDEX ADDRESS
//	                                       what a subnet manager sets; :: is no GID
//	reregister                             and that it wants all to register anew
//	subnet-link NODE PORT up|down          a cable of the subnet, if there is one
//	subnet-loss NODE PORT LOSS             which loses packets: 0.01
//	subnet-rate NODE PORT WIDTH SPEED      and allows no more: 1x SDR, or any any
//	subnet-agents NODE silent|well         whether a node answers
//	packets drop|duplicate QPN SKIP COUNT  of those that go to a QP; 0 is any
//	fabric LOSS DUPLICATE DELAY            for all cards, from now on: 0.01 0 5ms
//	headers inline|anywhere                where those of frames must be, of send queues made from now on
//	uars FIRST                             are given out from now on; how many of these are in use
//	violations                             how many there were so far
//	forgive RULE                           how often it was broken, on purpose: no violation any more
//	command NAME                           how often it was given: CREATE_QP
//	personality                            what makes the card differ from others
func (c *Card) Do(format string, args ...any) (string, error) {
	text := fmt.Sprintf(format, args...)
	if len(text) > benchSize-benchText {
		return "", fmt.Errorf("test bench: a command of %d bytes", len(text))
	}
	for i := range len(text) {
		c.store(benchText+i, text[i])
	}
	c.store(1, byte(len(text)))
	c.store(2, byte(len(text)>>8))
	c.store(0, 1) // now it is executed
	n := int(c.load(1)) | int(c.load(2))<<8
	said := make([]byte, min(n, benchSize-benchText))
	for i := range said {
		said[i] = c.load(benchText + i)
	}
	answer := string(said)
	if why, failed := strings.CutPrefix(answer, "error: "); failed {
		return "", fmt.Errorf("test bench: %s: %s", text, why)
	}
	return answer, nil
}

// store stores a byte. It is not inlined, so that the compiler can't make one access of several:
// on arm64 those to a device must be aligned.
//
//go:noinline
func (c *Card) store(at int, v byte) { c.bar[at] = v }

// load loads a byte, and is not inlined either.
//
//go:noinline
func (c *Card) load(at int) byte { return c.bar[at] }
