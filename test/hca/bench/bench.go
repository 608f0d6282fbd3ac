// Package bench lets a test in a virtual machine inject faults into the modelled ConnectX cards
// of that machine: lost packets, failed work requests and commands, a port that goes down, a
// card that dies. See package hca for the other end.
package bench

import (
	"fmt"
	"os"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/goverbs/goverbs/test/hca"
)

// Bench is the test bench of one card. It is for one goroutine.
type Bench struct {
	bar []byte
}

// Open opens the test bench of an RDMA device: "mlx5_0". It maps the card's BAR 0, which needs
// root and lasts as long as the PCI device is there, whatever becomes of its driver.
func Open(device string) (*Bench, error) {
	f, err := os.OpenFile("/sys/class/infiniband/"+device+"/device/resource0", os.O_RDWR, 0)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	bar, err := unix.Mmap(int(f.Fd()), hca.BenchOffset, hca.BenchSize, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return nil, fmt.Errorf("map the test bench of %s: %w", device, err)
	}
	return &Bench{bar: bar}, nil
}

// Close closes the test bench.
func (b *Bench) Close() error { return unix.Munmap(b.bar) }

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
func (b *Bench) Do(format string, args ...any) (string, error) {
	text := fmt.Sprintf(format, args...)
	if len(text) > hca.BenchSize-hca.BenchText {
		return "", fmt.Errorf("test bench: a command of %d bytes", len(text))
	}
	for i := range len(text) {
		b.store(hca.BenchText+i, text[i])
	}
	b.store(1, byte(len(text)))
	b.store(2, byte(len(text)>>8))
	b.store(0, 1) // now it is executed
	n := int(b.load(1)) | int(b.load(2))<<8
	said := make([]byte, min(n, hca.BenchSize-hca.BenchText))
	for i := range said {
		said[i] = b.load(hca.BenchText + i)
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
func (b *Bench) store(at int, v byte) { b.bar[at] = v }

// load loads a byte, and is not inlined either.
//
//go:noinline
func (b *Bench) load(at int) byte { return b.bar[at] }
