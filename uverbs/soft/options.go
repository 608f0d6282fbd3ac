package soft

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/goverbs/goverbs/uverbs/internal/abi"
	"github.com/goverbs/goverbs/uverbs/soft/internal/udp"
)

// Options are the properties of a device. The zero value is a device with the properties of rxe on
// a loopback address. [ParseOptions] reads them from a text.
type Options struct {
	// Name is the name of the device, by which package uverbs opens it. It has up to 63 bytes,
	// printable and without blanks, slashes, percent signs, commas and semicolons, and each parenthesis has
	// its counterpart. If it is empty, the name is the first of soft0, soft1 and so on that no device of the process has.
	Name string

	// Addr is the IP address of the device, an address of this host, at which other processes and
	// hosts reach the device. An IPv6 link-local address needs its zone. The zero value is the first
	// address from 127.0.0.1 on that no device of the process has; only devices of this process reach
	// the device then, and other processes may have devices with the same address.
	Addr netip.Addr

	// Auto gives the device the first address from 127.0.0.1 on whose UDP port is free. In contrast to
	// the zero value of Addr, other processes on this host reach the device. Addr must be the zero
	// value.
	Auto bool

	// Port is the UDP port of the device and of its peers in other processes. If it is 0, it is 4791, or
	// [AutoPort] if Auto finds 4791 taken on all addresses.
	Port uint16

	// ViaSocket sends packets to devices of this process, and to the device itself, through its UDP
	// socket too. Otherwise the devices of a process reach each other directly, which is faster. It
	// needs Addr or Auto.
	ViaSocket bool

	// MTU is the active MTU of the port in bytes: 256, 512, 1024, 2048 or 4096. If it is 0, it is
	// the largest of these for which a packet fits into the MTU of the network interface with the
	// address.
	MTU int

	// Limits are the limits of the device.
	Limits Limits

	// Seed is the seed of the random numbers of the device, such as keys, numbers of queue pairs and
	// its GUID. With the same seed, they are the same in each run. If it is 0, they differ.
	Seed uint64

	// Faults are the faults that the device injects. [Device.SetFaults] replaces them.
	Faults Faults

	// Trace gets a line in words for each packet that the device sends or receives, with what the faults
	// have done to it. Every Write is one line. All packets of the device wait for it. nil: none.
	Trace io.Writer

	// Capture gets the packets in the pcapng format, which Wireshark reads. Every Write is a part of the
	// file. nil: none. Wireshark recognizes UDP port 4791 as RoCE v2; of another Port, tell it so with its
	// "Decode As".
	Capture io.Writer

	// TraceFile and CaptureFile are names of files to which the device writes instead of Trace and
	// Capture. [New] creates them for this user alone, mode 0600, or empties them; it follows no symbolic
	// link. [Device.Close] closes them. Two devices must not have the same file.
	TraceFile, CaptureFile string
}

// Limits are the largest numbers of objects of a device. A limit of 0 stands for the limit of rxe.
type Limits struct {
	QPs  int // QPs is the largest number of queue pairs, at most 1,048,560.
	CQs  int // CQs is the largest number of completion queues, at most 1,048,576.
	SRQs int // SRQs is the largest number of shared receive queues, at most 917,503.
	MRs  int // MRs is the largest number of memory regions, at most 524,287.
	MWs  int // MWs is the largest number of memory windows, at most 524,287.
	PDs  int // PDs is the largest number of protection domains, at most 1,048,576.
	AHs  int // AHs is the largest number of address handles, at most 32,767.
}

// The limits of rxe (rxe_param.h).
const (
	maxObjects = 1 << 20
	maxQPs     = maxObjects - 16
	maxSRQs    = maxObjects - 0x20001
	maxMRs     = maxObjects>>1 - 1
	maxMWs     = maxObjects - (maxObjects>>1 + 1)
	maxAHs     = 1<<15 - 1
)

// zeroValue is the Value of an OptionError about an element that says nothing.
type zeroValue string

// OptionError reports an option that [New] or [ParseOptions] refuses.
type OptionError struct {
	Field   string // Field is the name of the field of Options, such as "MTU" or "Limits.QPs".
	Value   any    // Value is its value.
	Allowed string // Allowed describes the allowed values.
	Err     error  // Err is the reason, or nil.
}

// Error implements error.
func (e *OptionError) Error() string {
	value := fmt.Sprint(e.Value)
	if s, ok := e.Value.(string); ok {
		value = fmt.Sprintf("%q", s)
	}
	s := fmt.Sprintf("soft: %s is %s, must be %s", e.Field, value, e.Allowed)
	if e.Err != nil {
		s += ": " + e.Err.Error()
	}
	return s
}

// Unwrap returns the reason.
func (e *OptionError) Unwrap() error { return e.Err }

// defaultPort is the UDP port of RoCE v2.
const defaultPort = 4791

// AutoPort is the UDP port of a device with [Options].Auto and without a Port, where port 4791 is taken on all
// addresses, as by rdma_rxe of the kernel.
const AutoPort = 14791

// mtus are the MTUs of RoCE in bytes.
var mtus = []int{256, 512, 1024, 2048, 4096}

// allowedMTU describes the allowed values of MTU.
const allowedMTU = "256, 512, 1024, 2048 or 4096, or 0 for that of the network interface"

// check checks everything that does not depend on this host or on other devices, and fills in the
// defaults.
func (o *Options) check() error {
	if err := o.checkName(); err != nil {
		return err
	}
	if o.Port == 0 && !o.Auto {
		o.Port = defaultPort
	}
	if o.MTU != 0 && !slices.Contains(mtus, o.MTU) {
		return &OptionError{Field: "MTU", Value: o.MTU, Allowed: allowedMTU}
	}
	if o.Auto && o.Addr.IsValid() {
		return &OptionError{Field: "Auto", Value: true, Allowed: "false if there is an Addr, here " + o.Addr.String()}
	}
	if a := o.Addr; a.IsValid() && (a.IsUnspecified() || a.IsMulticast() || a == netip.AddrFrom4([4]byte{255, 255, 255, 255})) {
		return &OptionError{Field: "Addr", Value: a, Allowed: "an address of this host, not unspecified, multicast or broadcast"}
	}
	if a := o.Addr; a.Is6() && a.IsLinkLocalUnicast() && a.Zone() == "" {
		return &OptionError{Field: "Addr", Value: a, Allowed: "with a zone if it is a link-local address, such as fe80::1%eth0"}
	}
	if o.ViaSocket && !o.Auto && !o.Addr.IsValid() {
		return &OptionError{Field: "ViaSocket", Value: true, Allowed: "false without Addr and Auto, since the device has no socket"}
	}
	o.Addr = o.Addr.Unmap()
	if err := o.checkFaults(); err != nil {
		return err
	}
	return o.Limits.check()
}

// checkFaults checks the options of faults and records.
func (o *Options) checkFaults() error {
	if err := o.Faults.check(); err != nil {
		return err
	}
	for _, f := range []struct {
		field, name string
		w           io.Writer
	}{{"TraceFile", o.TraceFile, o.Trace}, {"CaptureFile", o.CaptureFile, o.Capture}} {
		if f.name != "" && f.w != nil {
			return &OptionError{Field: f.field, Value: f.name, Allowed: "empty if there is a " + strings.TrimSuffix(f.field, "File")}
		}
		if depth(f.name) != 0 {
			return &OptionError{Field: f.field, Value: f.name, Allowed: allowedFile}
		}
	}
	return nil
}

// allowedFile describes the allowed names of a file.
const allowedFile = "the name of a file, in which each parenthesis has its counterpart"

// checkName checks the name as the kernel checks that of a device.
func (o *Options) checkName() error {
	bad := !utf8.ValidString(o.Name) || depth(o.Name) != 0 || len(o.Name) >= abi.IB_DEVICE_NAME_MAX
	for _, c := range o.Name {
		bad = bad || c <= ' ' || strings.ContainsRune("/%,;\x7f", c)
	}
	if bad {
		return &OptionError{Field: "Name", Value: o.Name,
			Allowed: fmt.Sprintf("up to %d printable bytes without a blank, /, %%, a comma, a semicolon or a parenthesis without its counterpart, or empty for the first free softN", abi.IB_DEVICE_NAME_MAX-1)}
	}
	return nil
}

// allowedLimit describes the allowed values of a limit.
func allowedLimit(max int) string { return fmt.Sprintf("1 to %d, or 0 for %d", max, max) }

// check checks the limits and fills in the defaults.
func (l *Limits) check() error {
	for _, f := range []struct {
		name  string
		value *int
		max   int
	}{
		{"QPs", &l.QPs, maxQPs}, {"CQs", &l.CQs, maxObjects}, {"SRQs", &l.SRQs, maxSRQs}, {"MRs", &l.MRs, maxMRs},
		{"MWs", &l.MWs, maxMWs}, {"PDs", &l.PDs, maxObjects}, {"AHs", &l.AHs, maxAHs},
	} {
		if *f.value < 0 || *f.value > f.max {
			return &OptionError{Field: "Limits." + f.name, Value: *f.value, Allowed: allowedLimit(f.max)}
		}
		if *f.value == 0 {
			*f.value = f.max
		}
	}
	return nil
}

// netdev is the network interface of an address.
type netdev struct {
	name  string
	index int
	mtu   int
}

// findNetdev returns the network interface that has an address. Every address of 127.0.0.0/8
// belongs to the loopback interface.
func findNetdev(addr netip.Addr) (netdev, error) {
	link, err := udp.Interface(addr)
	if err != nil {
		return netdev{}, &OptionError{Field: "Addr", Value: addr, Allowed: "an address of this host", Err: err}
	}
	return netdev{name: link.Name, index: link.Index, mtu: link.MTU}, nil
}

// portMTU returns the largest MTU of a device whose network interface has an MTU. Like that of rxe it is at
// least 256 (rxe_set_mtu).
func portMTU(link int) int { return max(udp.MaxMTU(link), mtus[0]) }

// activeMTU returns the MTU of a device with a network interface.
func (o *Options) activeMTU(link *netdev) (int, error) {
	if o.Addr.IsValid() && udp.MaxMTU(link.mtu) == 0 {
		return 0, &OptionError{Field: "Addr", Value: o.Addr, Allowed: fmt.Sprintf("an address of a network interface with an MTU of at least %d bytes; %s has %d", mtus[0]+udp.MaxHeaders, link.name, link.mtu)}
	}
	most := portMTU(link.mtu)
	if o.MTU > most && o.Addr.IsValid() {
		return 0, &OptionError{Field: "MTU", Value: o.MTU, Allowed: fmt.Sprintf("at most %d, because network interface %s has an MTU of %d", most, link.name, link.mtu)}
	}
	return cmp.Or(o.MTU, most), nil
}

// errClosed is the error of a device that was closed.
var errClosed = errors.New("soft: the device is closed")
