package guest

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"strconv"
	"time"

	"golang.org/x/sys/unix"

	"github.com/goverbs/goverbs/tools/vmrun/internal/frame"
)

// IsInit reports whether this process is init of a guest that vmrun booted.
func IsInit() bool { return os.Getpid() == 1 && os.Getenv(EnvVar) != "" }

// Main is init. It never returns: it powers the machine off.
func Main() {
	if err := run(); err != nil {
		// Without the port, the console is all that there is.
		fmt.Fprintf(os.Stderr, "vmrun: init: %v\n", err)
	}
	unix.Sync()
	if err := unix.Reboot(unix.LINUX_REBOOT_CMD_POWER_OFF); err != nil {
		fmt.Fprintf(os.Stderr, "vmrun: power off: %v\n", err)
	}
	select {}
}

type initProc struct {
	cfg   Config
	self  Host
	host  int           // 1 and so on, or 0 for a machine that is alone
	goOn  chan struct{} // the other hosts have come as far
	out   *frame.Writer
	port  *port
	kmsg  *kmsgReader
	procs *procTable

	stdin   *frame.Incoming
	stdinR  *os.File
	streams map[frame.Kind]*pump
}

func run() error {
	b, err := os.ReadFile(ConfigPath)
	if err != nil {
		return err
	}
	p := &initProc{procs: newProcTable(), goOn: make(chan struct{}, 1)}
	if err := json.Unmarshal(b, &p.cfg); err != nil {
		return fmt.Errorf("%s: %w", ConfigPath, err)
	}
	if p.host, p.self, err = whichHost(p.cfg.Hosts, os.Getenv(HostVar)); err != nil {
		return err
	}
	if err := mountAll(); err != nil {
		return err
	}
	if err := loadModules(p.cfg.Channel); err != nil {
		return err
	}
	if p.port, err = openPort(10 * time.Second); err != nil {
		return err
	}
	p.out = frame.NewWriter(p.port)
	if err := p.serve(); err != nil {
		p.kmsg.drain()
		if serr := p.out.Send(frame.Fatal, []byte(err.Error())); serr != nil {
			return errors.Join(err, serr)
		}
		return p.linger()
	}
	return p.linger()
}

// whichHost gives this machine's number, 0 if it is alone, and what it shall do.
func whichHost(hosts []Host, number string) (int, Host, error) {
	if number == "" && len(hosts) == 1 {
		return 0, hosts[0], nil
	}
	n, err := strconv.Atoi(number)
	if err != nil || n < 1 || n > len(hosts) {
		return 0, Host{}, fmt.Errorf("%s is %q, and the configuration is for %d host(s)", HostVar, number, len(hosts))
	}
	return n, hosts[n-1], nil
}

// settle is how long the kernel's log is listened to after the last program.
const settle = 50 * time.Millisecond

// linger waits for the host to switch the machine off, which is faster than the
// kernel's own way; the kernel's way follows all the same.
func (p *initProc) linger() error {
	time.Sleep(5 * time.Second)
	return nil
}

func (p *initProc) serve() error {
	var u unix.Utsname
	if err := unix.Uname(&u); err != nil {
		return fmt.Errorf("uname: %w", err)
	}
	if err := p.sendJSON(frame.Hello, HelloMsg{Release: unix.ByteSliceToString(u.Release[:])}); err != nil {
		return err
	}
	p.kmsg = startKmsg(p.out)
	if err := p.openStreams(); err != nil {
		return err
	}
	go p.receive()

	p.logf("loading %d modules", len(p.cfg.Modules))
	if err := loadModules(p.cfg.Modules); err != nil {
		return err
	}
	p.logf("network: %s", p.cfg.Net)
	if err := p.setupNet(); err != nil {
		return err
	}
	if p.cfg.NoSysfs {
		if err := unix.Unmount("/sys", 0); err != nil {
			return fmt.Errorf("unmount /sys: %w", err)
		}
	}
	if err := os.MkdirAll(p.cfg.Dir, 0o755); err != nil {
		return err
	}
	if err := os.Chdir(p.cfg.Dir); err != nil {
		return err
	}
	if err := p.barrier(); err != nil {
		return err
	}
	// Not before all hosts have heard of each other.
	if err := p.emulate(); err != nil {
		return err
	}
	for i, prog := range p.self.Programs {
		if err := p.runProgram(i, prog); err != nil {
			return err
		}
	}
	// Other hosts' programs may still talk to this kernel.
	if err := p.barrier(); err != nil {
		return err
	}
	for _, path := range p.self.Fetch {
		if err := p.sendFile(path); err != nil {
			return err
		}
	}
	// Work queues tear down what the last program left behind.
	time.Sleep(settle)
	p.kmsg.drain()
	return p.out.Send(frame.Done, nil)
}

// barrier waits until the other hosts, if there are any, have come as far.
func (p *initProc) barrier() error {
	if p.host == 0 {
		return nil
	}
	if err := p.out.Send(frame.Barrier, nil); err != nil {
		return err
	}
	<-p.goOn
	return nil
}

// emulate makes the link as bad as it shall be.
func (p *initProc) emulate() error {
	ends := cables(p.cfg.Net, p.host)
	if p.cfg.Link == (Netem{}) || len(ends) == 0 {
		return nil // what the packets of cards meet is the fabric's
	}
	if err := loadModules(p.cfg.Netem); err != nil {
		return err
	}
	for _, e := range ends {
		if err := setNetem(e.dev, netip.Addr{}, p.cfg.Link); err != nil {
			return err
		}
	}
	return nil
}

func (p *initProc) logf(format string, args ...any) {
	// A lost port is found by whoever sends something that matters.
	_ = p.out.Send(frame.Log, fmt.Appendf(nil, format, args...))
}

func (p *initProc) sendJSON(k frame.Kind, v any) error {
	b, err := json.Marshal(v)
	if err != nil {
		return err
	}
	return p.out.Send(k, b)
}

// receive handles what the host sends until the machine goes away.
func (p *initProc) receive() {
	for {
		m, err := frame.Read(p.port)
		if err != nil {
			p.logf("reading from vmrun: %v", err)
			return
		}
		if err := p.handle(m); err != nil {
			p.logf("message %q from vmrun: %v", byte(m.Kind), err)
		}
	}
}

func (p *initProc) handle(m frame.Message) error {
	switch m.Kind {
	case frame.Stdin:
		return p.stdin.Put(m.Payload)
	case frame.Credit:
		stream, n, err := frame.ParseCredit(m.Payload)
		if err != nil {
			return err
		}
		if s := p.streams[stream]; s != nil {
			s.out.Grant(n)
		}
	case frame.Closed:
		if len(m.Payload) == 1 {
			if s := p.streams[frame.Kind(m.Payload[0])]; s != nil {
				s.hangup()
			}
		}
	case frame.Go:
		select {
		case p.goOn <- struct{}{}:
		default:
			return frame.ErrFormat // nobody waits
		}
	case frame.Signal:
		if len(m.Payload) == 1 {
			return p.procs.signal(unix.Signal(m.Payload[0]))
		}
	case frame.Dump:
		p.dump()
	default:
		return frame.ErrFormat
	}
	return nil
}

// dump lets the kernel print the tasks that wait uninterruptibly, and lets a Go
// program print its goroutines.
func (p *initProc) dump() {
	if err := os.WriteFile("/proc/sysrq-trigger", []byte("w"), 0); err != nil {
		p.logf("sysrq: %v", err)
	}
	if err := p.procs.signal(unix.SIGQUIT); err != nil {
		p.logf("%v", err)
	}
}
