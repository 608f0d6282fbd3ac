package softrxe

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/goverbs/goverbs/test/testenv"
)

// The network interfaces: ve0 belongs to rxe0, and ve1 to the software device. With modelled cards
// they belong to the two cards.
var (
	kernelLink = testenv.TheRig().Netdevs[0]
	softLink   = testenv.TheRig().Netdevs[1]
)

// nobody is the user that owns nothing.
const nobody = 65534

// namespace is the network namespace of the software device, with a thread that is root in it and one
// that is nobody.
type namespace struct {
	root, nobody *thread
}

// thread is a thread of the system that runs functions in the order in which they come.
type thread struct {
	id   int
	work chan func()
}

// newThread returns a thread after enter has changed it, for good: it runs nothing else.
func newThread(enter func() error) (*thread, error) {
	th := &thread{work: make(chan func())}
	entered := make(chan error)
	go func() {
		runtime.LockOSThread()
		th.id = unix.Gettid()
		entered <- enter()
		for f := range th.work {
			f()
		}
	}()
	return th, <-entered
}

// do runs a function on the thread.
func (th *thread) do(f func() error) error {
	result := make(chan error)
	th.work <- func() { result <- f() }
	return <-result
}

// start starts a program on the thread, with whose rights and network it runs.
func (th *thread) start(cmd *exec.Cmd) error { return th.do(cmd.Start) }

// file returns the path of a file about the network of the thread, such as "net/tcp" or "ns/net".
func (th *thread) file(name string) string { return fmt.Sprintf("/proc/self/task/%d/%s", th.id, name) }

// newNamespace makes the namespace and moves ve1 there, which gets its addresses again.
func newNamespace() (n *namespace, err error) {
	// Without rights, the default of 208 KiB holds some 90 packets of 1 KiB. UC does not repeat lost packets.
	if err := os.WriteFile("/proc/sys/net/core/rmem_max", []byte("16777216"), 0); err != nil {
		return nil, fmt.Errorf("raise the limit of receive buffers: %w", err)
	}
	if err := errors.Join(keepOrder(kernelLink), keepOrder(softLink)); err != nil {
		return nil, err
	}
	n = new(namespace)
	if n.root, err = newThread(func() error { return unix.Unshare(unix.CLONE_NEWNET) }); err != nil {
		return nil, fmt.Errorf("new network namespace: %w", err)
	}
	f, err := os.Open(n.root.file("ns/net"))
	if err != nil {
		return nil, err
	}
	defer f.Close()
	n.nobody, err = newThread(func() error {
		if err := unix.Setns(int(f.Fd()), unix.CLONE_NEWNET); err != nil {
			return fmt.Errorf("enter the network namespace: %w", err)
		}
		return becomeNobody()
	})
	if err != nil {
		return nil, err
	}
	link, err := netlink.LinkByName(softLink)
	if err != nil {
		return nil, fmt.Errorf("find %s: %w", softLink, err)
	}
	if testenv.Modelled() {
		if err := detachRDMA(testenv.TheRig().Devices[1]); err != nil {
			return nil, err
		}
	}
	if err := netlink.LinkSetNsFd(link, int(f.Fd())); err != nil {
		return nil, fmt.Errorf("move %s into the namespace: %w", softLink, err)
	}
	return n, n.root.do(func() error { return errors.Join(setUp("lo"), setUp(softLink, softAddr, softAddr6)) })
}

// keepOrder has the first processor receive all packets of an interface. By default each packet waits in the
// queue of the processor that sends it, so packets of a thread that moves to another processor overtake those
// before them. UC and UD do not repair that.
func keepOrder(name string) error {
	queues, err := filepath.Glob("/sys/class/net/" + name + "/queues/rx-*/rps_cpus")
	if err != nil || len(queues) == 0 {
		return fmt.Errorf("%s has no receive queues: %v", name, err)
	}
	for _, q := range queues {
		if err := os.WriteFile(q, []byte("1"), 0); err != nil {
			return fmt.Errorf("choose the processor that receives: %w", err)
		}
	}
	return nil
}

// detachRDMA takes the RDMA driver off a card, so that its network interface gets the packets of RoCE v2.
func detachRDMA(device string) error {
	parts, err := filepath.Glob("/sys/class/infiniband/" + device + "/device/mlx5_core.rdma.*")
	if err != nil || len(parts) != 1 {
		return fmt.Errorf("the RDMA part of %s is one of %q (%v)", device, parts, err)
	}
	if err := os.WriteFile("/sys/bus/auxiliary/drivers/mlx5_ib.rdma/unbind", []byte(filepath.Base(parts[0])), 0); err != nil {
		return fmt.Errorf("detach the RDMA driver from %s: %w", device, err)
	}
	return nil
}

// becomeNobody takes the rights of this thread alone. The functions of package unix would change all
// threads of the process.
func becomeNobody() error {
	for _, call := range [][4]uintptr{
		{unix.SYS_SETGROUPS},
		{unix.SYS_SETRESGID, nobody, nobody, nobody},
		{unix.SYS_SETRESUID, nobody, nobody, nobody},
	} {
		if _, _, errno := unix.RawSyscall(call[0], call[1], call[2], call[3]); errno != 0 {
			return fmt.Errorf("become nobody: %w", errno)
		}
	}
	return nil
}

// setUp activates an interface of the calling thread's namespace and gives it addresses.
func setUp(name string, addrs ...netip.Addr) error {
	link, err := netlink.LinkByName(name)
	if err != nil {
		return fmt.Errorf("find %s: %w", name, err)
	}
	if err := netlink.LinkSetUp(link); err != nil {
		return fmt.Errorf("activate %s: %w", name, err)
	}
	for _, a := range addrs {
		bits := 24
		if a.Is6() {
			bits = 64
		}
		ipnet := &net.IPNet{IP: a.AsSlice(), Mask: net.CIDRMask(bits, a.BitLen())}
		if err := netlink.AddrAdd(link, &netlink.Addr{IPNet: ipnet, Flags: unix.IFA_F_NODAD}); err != nil {
			return fmt.Errorf("address %s of %s: %w", a, name, err)
		}
	}
	return nil
}

// setMTU sets the MTU of both interfaces.
func (n *namespace) setMTU(mtu int) error {
	return n.both(func(name string) error {
		link, err := netlink.LinkByName(name)
		if err != nil {
			return fmt.Errorf("find %s: %w", name, err)
		}
		return netlink.LinkSetMTU(link, mtu)
	})
}

// impair makes the link lose, delay or reorder packets in both directions, in words of vmlink's netem.
func (n *namespace) impair(words ...string) error {
	return n.both(func(name string) error {
		args := append([]string{name, "netem"}, words...)
		if out, err := exec.Command("vmlink", args...).CombinedOutput(); err != nil {
			return fmt.Errorf("vmlink %s: %s%w", strings.Join(args, " "), out, err)
		}
		return nil
	})
}

// both does something with both interfaces, each in its namespace.
func (n *namespace) both(f func(name string) error) error {
	return errors.Join(f(kernelLink), n.root.do(func() error { return f(softLink) }))
}
