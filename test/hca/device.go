package hca

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/goverbs/goverbs/test/hca/engine"
	"github.com/goverbs/goverbs/test/hca/prm"
	"github.com/goverbs/goverbs/test/hca/subnet"
	"github.com/goverbs/goverbs/test/hca/vfiouser"
)

// Mode is what the card's port speaks.
type Mode string

// The modes.
const (
	IB   Mode = "ib"   // InfiniBand
	RoCE Mode = "roce" // Ethernet, with RoCE v1 and v2
)

// ParseMode reads a mode's name.
func ParseMode(s string) (Mode, error) {
	if m := Mode(s); m == IB || m == RoCE {
		return m, nil
	}
	return "", fmt.Errorf("mode %q: want %s or %s", s, IB, RoCE)
}

// Config is a card to make.
type Config struct {
	Name        string               // Name stands in reports: "mlx5_0".
	Personality Personality          // Personality is what makes it differ from other cards.
	Strict      bool                 // Strict: reserved bits in queues and doorbells that a card does not read must be 0.
	Mode        Mode                 // Mode is what its port speaks.
	Managed     bool                 // Managed: an InfiniBand port waits for a subnet manager. Otherwise it is active, with a LID.
	Index       uint8                // Index tells cards on one fabric apart: GUID, MAC and LID are made from it.
	Memory      engine.Memory        // Memory is the guest's.
	BAR0        func() uint64        // BAR0 says at which bus address the guest has put BAR 0; nil if nobody knows.
	Interrupt   func(vector int)     // Interrupt raises an MSI-X vector.
	Fabric      *engine.Fabric       // Fabric joins the card with others.
	Subnet      *subnet.Subnet       // Subnet is what a managed port is connected with, made by NewSubnet; nil is a wire that joins all cards.
	Node        string               // Node is the name of the adapter with one port whose place the card takes in Subnet.
	Trace       func(line string)    // Trace takes what happens in words; nil is nobody.
	Now         func() time.Duration // Now is the clock of the free running timer; nil is the fabric's, which CQEs have.
}

// The identity of the card on its bus.
var (
	// ID is the device ID of a ConnectX-5's virtual function.
	ID = vfiouser.ID{Vendor: 0x15b3, Device: 0x1018, SubVendor: 0x15b3, SubDevice: 0x0001, Class: 0x020000}
)

// Sizes of the card on its bus.
const (
	BARSize   = 512 << 20 // BARSize is the usual size of BAR 0, in bytes: there are UAR pages whose number has more than 16 bits.
	Vectors   = 32        // Vectors is the number of MSI-X interrupts.
	MSIXTable = 0x2000    // MSIXTable is the table's place in BAR 0.
	MSIXPBA   = 0x3000    // MSIXPBA is the pending array's.
)

// phase is how far the driver has brought the card up.
type phase int

const (
	phaseReset   phase = iota // nothing has happened
	phaseEnabled              // ENABLE_HCA
	phaseRunning              // INIT_HCA
)

// Device is one card. Its methods may be called from any goroutine.
type Device struct {
	cfg   Config
	eng   *engine.Device
	bench benchArea

	// deaf is set from the card's death to the next INIT_HCA: programs go on ringing doorbells
	// of objects that are gone, and nobody listens.
	deaf atomic.Bool

	mu       sync.Mutex // guards what follows; the engine's lock is taken inside it
	phase    phase
	slots    uint64 // bus address of the command queue
	issi     uint16
	caps     capSet
	cmdEQ    uint32          // EQ that command completions go to, 0 if there is none
	pages    map[uint64]bool // memory that the driver has given to firmware
	uars     map[uint32]bool
	uarsFrom uint32            // the lowest number that is given out
	domains  map[uint32]bool   // transport domains
	dm       map[uint64]uint64 // own memory that was given out: sizes by places
	nic      nicVPort
	hvp      hcaVPort
	powered  bool // the port has been brought into the state after power-on
	subnet   subnetAgent
	link     *subnetLink // nil without a subnet
	counters portCounters
	roce     [][]byte          // as SET_ROCE_ADDRESS gave them
	regs     map[uint16][]byte // registers that hold what was written
	eth      steering
	users    users
	faults   []*commandFault
	rep      report
	fatal    bool
	life     int // counts resets, for commands that take time
}

// New makes a card and puts it on its fabric.
func New(cfg Config) (*Device, error) {
	if _, err := ParseMode(string(cfg.Mode)); err != nil {
		return nil, err
	}
	if err := cfg.Personality.check(); err != nil {
		return nil, err
	}
	if cfg.Managed && cfg.Mode != IB {
		return nil, fmt.Errorf("mode %s: only a port of mode %s can be managed", cfg.Mode, IB)
	}
	if cfg.Subnet != nil && !cfg.Managed {
		return nil, fmt.Errorf("card %s: the port of a card in a subnet must be managed", cfg.Name)
	}
	if cfg.Managed && cfg.Personality.NoSMI {
		return nil, fmt.Errorf("personality %s: a port without a subnet management interface cannot be managed", cfg.Personality)
	}
	d := &Device{cfg: cfg}
	d.rep.init(cfg)
	layer := engine.InfiniBand
	if cfg.Mode == RoCE {
		layer = engine.Ethernet
	}
	ec := engine.Config{
		Name: cfg.Name, Memory: cfg.Memory, Interrupt: cfg.Interrupt, Fabric: cfg.Fabric,
		LinkLayer: layer, CQEVersion: 1, Receive: d.eth.receive, Count: d.eth.countRoCE, DeviceMemory: dmSize, Strict: cfg.Strict, Traits: cfg.Personality.traits(cfg.Mode),
	}
	if cfg.BAR0 != nil {
		ec.OwnAddress = func() uint64 { return cfg.BAR0() + cfg.Personality.dmStart() }
	}
	if cfg.Personality.CQEVersion0 {
		ec.CQEVersion = 0
	}
	if cfg.Personality.SmallLimits {
		ec.MaxQPs = 1 << smallLogQPs
	}
	if cfg.Trace != nil {
		ec.Trace = func(e engine.TraceEvent) { cfg.Trace(e.String()) }
	}
	if cfg.Subnet != nil {
		d.link = &subnetLink{d: d, wake: make(chan struct{}, 1)}
		ec.Link = d.link
	}
	var err error
	if d.eng, err = engine.New(ec); err != nil {
		return nil, err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.clear()
	if err := d.plug(); err != nil {
		d.eng.Close()
		return nil, err
	}
	return d, nil
}

// Reset is what the guest's reset of the PCI function does: every object is gone.
func (d *Device) Reset() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.eng.Reset()
	d.rep.Resets++
	d.clear()
}

// Revive brings a card that has failed into the state after power-on.
func (d *Device) Revive() { d.Reset() }

// Close takes the card off its fabric.
func (d *Device) Close() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.life++
	d.unplug()
	d.eng.Close()
}

// Engine gives the card's data path, for tests that inject faults there.
func (d *Device) Engine() *engine.Device { return d.eng }

// clear brings everything but the engine into the state after power-on.
func (d *Device) clear() {
	d.phase, d.slots, d.issi, d.cmdEQ, d.fatal = phaseReset, 0, 0, 0, false
	d.caps = newCaps(d.cfg.Mode, d.cfg.Index, &d.cfg.Personality)
	d.pages, d.uars, d.domains = map[uint64]bool{}, map[uint32]bool{}, map[uint32]bool{}
	d.dm = map[uint64]uint64{}
	d.regs = map[uint16][]byte{}
	d.describe()
	d.roce = make([][]byte, d.cfg.Personality.gids())
	d.life++
	d.eth.clear()
	d.users.clear()
	d.clearPort()
}

// now is the free running timer, which counts nanoseconds.
func (d *Device) now() uint64 {
	if d.cfg.Now != nil {
		return uint64(d.cfg.Now())
	}
	return uint64(d.cfg.Fabric.Now())
}

// guid gives the card's GUID, and by kind those of its parts.
func (d *Device) guid() uint64 { return 0x506b4b0300c0ff00 | uint64(d.cfg.Index) }

// mac gives the card's MAC address.
func (d *Device) mac() [6]byte { return [6]byte{0x50, 0x6b, 0x4b, 0xc0, 0xff, d.cfg.Index} }

// failure is a command that is refused.
type failure struct {
	status   prm.Status
	syndrome uint32
	why      string
}

func (f *failure) Error() string {
	return fmt.Sprintf("%s (%s, syndrome %#x)", f.why, f.status, f.syndrome)
}

// refuse makes the failure of a command. The same thing that is wrong gives the same syndrome
// every time; the numbers are this model's own.
func refuse(status prm.Status, what, format string, args ...any) *failure {
	return &failure{status: status, syndrome: syndrome(what), why: what + ": " + fmt.Sprintf(format, args...)}
}

// syndrome makes a number out of what was wrong (FNV-1a, 24 bits of it).
func syndrome(what string) uint32 {
	h := uint32(2166136261)
	for i := range len(what) {
		h = (h ^ uint32(what[i])) * 16777619
	}
	return h>>8 | 1
}

// asFailure turns an error of the engine into an answer.
func asFailure(err error) *failure {
	var f *failure
	if errors.As(err, &f) {
		return f
	}
	var e *engine.Error
	if errors.As(err, &e) {
		what := e.Object
		if e.Field != "" {
			what += "." + e.Field
		}
		return &failure{status: prm.Status(e.Kind), syndrome: syndrome(what + ": " + e.Kind.String()), why: e.Error()}
	}
	return &failure{status: prm.InternalErr, syndrome: syndrome("internal"), why: err.Error()}
}
