// Package qemu finds QEMU and runs machines in it that have no disk, no screen
// and, unless several are joined by links, no network card: a kernel, an initramfs, a
// console and a virtio-serial port.
package qemu

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"
)

// Options say what machine it shall be.
type Options struct {
	Arch    string   // Arch is the guest's architecture, as Go names it.
	Accel   string   // Accel is "kvm" or "tcg".
	CPUs    int      // CPUs is how many the guest has.
	MemMiB  int      // MemMiB is its memory in MiB.
	Kernel  string   // Kernel is the path of the image.
	Initrd  *os.File // Initrd is the initramfs; it is read, not closed.
	Append  []string // Append goes to the kernel's command line.
	Extra   []string // Extra goes to QEMU's.
	Console io.Writer

	// ICount has the guest's clock advance by a nanosecond for each instruction that is executed,
	// and at once to the next timer while it is idle; with Cards, in real time while it is idle.
	// It is for one CPU and "tcg".
	ICount bool

	// Links are ends of links to other machines; used, not closed. The machine forwards between
	// several, and to its network card.
	Links []*os.File
	MAC   string // MAC is the address of the network card at the links.

	Cards []*os.File // Cards are sockets (open with O_PATH) behind which somebody plays a PCI device each (vfio-user); used, not closed.
}

// Machine is a running QEMU. Kill may be called from any goroutine.
type Machine struct {
	Port *os.File      // Port is the host's end of the virtio-serial port.
	Done chan struct{} // Done is closed when QEMU has ended.

	cmd    *exec.Cmd
	err    error
	stderr tail
}

// kernelArgs go to every kernel. An emulated machine on a busy host stands still
// for seconds at times, which must not look like a lockup; a real one still
// shows.
var kernelArgs = []string{
	"quiet", "panic=-1", "VMRUN_GUEST=1",
	"log_buf_len=4M", "printk.devkmsg=on",
	"rcupdate.rcu_cpu_stall_timeout=120", "rcupdate.rcu_exp_cpu_stall_timeout=120000", "watchdog_thresh=60",
	"cryptomgr.notests", "random.trust_cpu=on", "mitigations=off",
}

// Args gives QEMU's arguments for a machine. The initramfs is descriptor 3, the
// port's socket is descriptor 4, and those of the links and the cards follow.
func Args(o Options) ([]string, error) {
	t, ok := targets[o.Arch]
	if !ok {
		return nil, fmt.Errorf("architecture %q; known are %v", o.Arch, Arches())
	}
	cpu := t.tcgCPU
	if o.Accel == "kvm" {
		cpu = "host"
	}
	params := append([]string{"console=" + t.console}, kernelArgs...)
	if o.Arch == "amd64" && o.Accel == "tcg" {
		// The kernel does not trust an emulated TSC and reads the HPET instead, a
		// hundred times as slow: a system call for each look at the clock. The TSC is
		// the host's clock, the same for all processors.
		params = append(params, "tsc=reliable")
		khz := tscKHz()
		if o.ICount {
			khz = 1e6 // a nanosecond each
		}
		if khz != 0 { // Linux 5.11 and later take it
			params = append(params, fmt.Sprintf("tsc_early_khz=%d", khz))
		}
	}
	args := append([]string{}, t.machine...)
	if len(o.Cards) > 0 {
		// A test may map a card's registers beside the driver, for the model's test bench.
		params = append(params, "iomem=relaxed")
		args = append([]string{}, t.vfioMachine...)
		// Whoever plays the devices maps the memory, which must not shrink.
		args = append(args, "-object", fmt.Sprintf("memory-backend-memfd,id=mem,size=%dM,share=on,seal=on", o.MemMiB))
	}
	args = append(args,
		"-accel", o.Accel, "-cpu", cpu,
		"-smp", strconv.Itoa(o.CPUs), "-m", strconv.Itoa(o.MemMiB)+"M",
		"-nodefaults", "-no-user-config", "-no-reboot", "-display", "none", "-nic", "none",
		"-kernel", o.Kernel, "-initrd", "/proc/self/fd/3",
		"-append", strings.Join(append(params, o.Append...), " "),
		"-chardev", "stdio,id=console,signal=off", "-serial", "chardev:console",
		"-device", "virtio-serial-pci,max_ports=2",
		"-chardev", "socket,id=port,fd=4", "-device", "virtserialport,chardev=port,name=vmrun,nr=1",
	)
	if o.ICount {
		// With sleep=off the clock of an idle guest jumps to the next timer. With cards that would
		// make the driver's time-outs expire at once.
		sleep := "off"
		if len(o.Cards) > 0 {
			sleep = "on"
		}
		args = append(args, "-icount", "shift=0,sleep="+sleep)
	}
	for i := range o.Links {
		args = append(args, "-netdev", fmt.Sprintf("dgram,id=link%d,local.type=fd,local.str=%d", i, firstLink+i))
	}
	if len(o.Links) > 0 {
		// Without a ROM: the machine does not boot from the network. No virtio-net: while that is
		// down it keeps what it has to send, for which rxe's QPs wait; and on Linux 7.2 freeing a
		// packet that it has received may run softirqs. rxe frees what a failed QP has received
		// under that QP's lock, which its softirq takes for the next packet: the guest may hang.
		args = append(args, "-device", "e1000e,netdev="+o.cardAt()+",romfile=,mac="+o.MAC)
	}
	if len(o.Links) > 1 {
		args = append(args, "-netdev", "hubport,id=hub,hubid=0")
		for i := range o.Links {
			args = append(args, "-netdev", fmt.Sprintf("hubport,id=port%d,hubid=0,netdev=link%d", i, i))
		}
	}
	for i := range o.Cards {
		args = append(args, "-device", fmt.Sprintf(`{"driver":"vfio-user-pci","socket":{"type":"unix","path":"/proc/self/fd/%d"}}`, o.firstCard()+i))
	}
	return append(args, o.Extra...), nil
}

// cardAt names what the network card is connected to: the link, or the hub of several.
func (o Options) cardAt() string {
	if len(o.Links) > 1 {
		return "hub"
	}
	return "link0"
}

// firstLink is the descriptor of the first link.
const firstLink = 5

// firstCard is the descriptor of the first card.
func (o Options) firstCard() int { return firstLink + len(o.Links) }

// Start starts QEMU. It is killed when the context ends, when vmrun dies, or by
// Kill.
func (p *Program) Start(ctx context.Context, o Options) (*Machine, error) {
	args, err := Args(o)
	if err != nil {
		return nil, err
	}
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("socketpair: %w", err)
	}
	if err := unix.SetNonblock(pair[0], true); err != nil {
		return nil, fmt.Errorf("socketpair: %w", err)
	}
	m := &Machine{Port: os.NewFile(uintptr(pair[0]), "port"), Done: make(chan struct{})}
	theirs := os.NewFile(uintptr(pair[1]), "port")
	defer theirs.Close()

	argv := append(append([]string{}, p.Argv...), args...)
	m.cmd = exec.CommandContext(ctx, argv[0], argv[1:]...)
	m.cmd.ExtraFiles = []*os.File{o.Initrd, theirs}
	m.cmd.ExtraFiles = append(m.cmd.ExtraFiles, o.Links...)
	m.cmd.ExtraFiles = append(m.cmd.ExtraFiles, o.Cards...)
	m.cmd.Stdout, m.cmd.Stderr = o.Console, &m.stderr
	m.cmd.SysProcAttr = &syscall.SysProcAttr{
		Pdeathsig: syscall.SIGKILL,
		Setpgid:   true, // a terminal's Ctrl-C is for vmrun, which ends QEMU itself
	}
	started := make(chan error)
	go func() {
		// The kernel sends the death signal when the thread ends that started
		// the process, so this one must stay.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := m.cmd.Start()
		started <- err
		if err == nil {
			m.err = m.cmd.Wait()
			close(m.Done)
		}
	}()
	if err := <-started; err != nil {
		m.Port.Close()
		return nil, err
	}
	return m, nil
}

// Kill ends QEMU and waits until it is gone.
func (m *Machine) Kill() {
	// It may be gone already.
	_ = m.cmd.Process.Kill()
	<-m.Done
	m.Port.Close()
}

// Err says how QEMU ended, with what it wrote. It may be called once Done is
// closed.
func (m *Machine) Err() error {
	said := strings.TrimSpace(m.stderr.String())
	switch {
	case m.err == nil && said == "":
		return nil
	case m.err == nil:
		return fmt.Errorf("QEMU: %s", said)
	case said == "":
		return fmt.Errorf("QEMU: %w", m.err)
	}
	return fmt.Errorf("QEMU: %w: %s", m.err, said)
}

// tail keeps the last bytes written to it. It is safe for concurrent use.
type tail struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (t *tail) Write(p []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.buf.Len() > 1<<16 {
		t.buf.Next(1 << 15)
	}
	return t.buf.Write(p)
}

func (t *tail) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.buf.String()
}

// KVM reports whether the machine can be expected to run under KVM, and if not,
// why not. A /dev/kvm that opens is not enough: on some hosts without hardware
// support it does, and the guest never runs.
func KVM(arch string) (bool, string) {
	if arch != runtime.GOARCH {
		return false, "the guest is " + arch + " and the host " + runtime.GOARCH
	}
	b, err := os.ReadFile("/proc/cpuinfo")
	if err != nil {
		return false, err.Error()
	}
	if arch == "amd64" && !cpuHas(string(b), "vmx") && !cpuHas(string(b), "svm") {
		return false, "the processor shows neither vmx nor svm"
	}
	f, err := os.OpenFile("/dev/kvm", os.O_RDWR, 0)
	if err != nil {
		return false, err.Error()
	}
	f.Close()
	return true, ""
}

func cpuHas(cpuinfo, flag string) bool {
	for line := range strings.Lines(cpuinfo) {
		key, value, _ := strings.Cut(line, ":")
		if strings.TrimSpace(key) == "flags" {
			for f := range strings.FieldsSeq(value) {
				if f == flag {
					return true
				}
			}
			return false
		}
	}
	return false
}
