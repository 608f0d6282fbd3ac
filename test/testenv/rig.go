package testenv

import (
	"encoding/json"
	"os"
	"runtime"
	"slices"
	"strings"
	"testing"
)

// DevicesEnv names the two RDMA devices that tests use, separated by a comma. Both may be the same.
// The names soft0 and soft1 belong to software devices in the process, for which no guest is
// needed. Without it they are these, or those of rxe in a guest.
const DevicesEnv = "GOVERBS_DEVICES"

// RigEnv holds a Rig as JSON, which is used instead of what DevicesEnv stands for. The program of
// test/suites/conformance sets it, since its devices are not those of vmrun.
const RigEnv = "GOVERBS_RIG"

// Rig is what there is to test with.
type Rig struct {
	Driver  string    // Driver is the driver's name, "rxe", "mlx5", "siw" or "efa"; "rxe" for software devices, which play it.
	Soft    bool      // Soft says that the devices are software devices in the process.
	Devices [2]string // Devices are two RDMA devices that reach each other.
	Netdevs [2]string // Netdevs are their network interfaces; empty on InfiniBand without IPoIB.
	Addrs   [2]string // Addrs are their IPv4 addresses; empty on InfiniBand without IPoIB.
	GID     int       // GID is where they have the GID of an IPv4 address, or else their own.
	GID6    int       // GID6 is where they have that of an IPv6 address.

	// OnInfiniBand says that the devices are on InfiniBand.
	OnInfiniBand bool
}

// ModelEnv, if it is set, says that the devices are models of ConnectX cards (package hca),
// which tests may ask for what they ask no real card.
const ModelEnv = "GOVERBS_MODEL"

// Modelled reports whether the devices are models.
func Modelled() bool { return os.Getenv(ModelEnv) != "" }

// PersonalityEnv says in words in what modelled cards differ from usual ones. vmrun sets it;
// package hca has the words.
const PersonalityEnv = "VMRUN_PERSONALITY"

// CardIs reports whether the personality of the modelled cards contains a word. Of a word with a
// value, such as "bar=1MiB", the name "bar" matches as well. Tests of the library do not call it:
// the errors of the library tell them what a card cannot do.
func CardIs(word string) bool {
	words := strings.Fields(os.Getenv(PersonalityEnv))
	return len(words) > 1 && slices.ContainsFunc(words[1:], func(w string) bool {
		name, _, _ := strings.Cut(w, "=")
		return w == word || name == word
	})
}

// SlowEnv, if it is set, says that this machine is slow: what is about load is less then.
const SlowEnv = "GOVERBS_SLOW"

// Slow reports whether tests should do less, because the machine or its devices are slow.
func Slow() bool { return Modelled() || os.Getenv(SlowEnv) != "" }

// BriefEnv, if it is set, says that another run makes the whole load, so that this one can make less of it.
const BriefEnv = "GOVERBS_BRIEF"

// Brief reports whether tests should make less load: they are slow, or another run makes all of it.
func Brief() bool { return Slow() || os.Getenv(BriefEnv) != "" }

// rxeRig is the rig that vmrun makes by default.
var rxeRig = Rig{Driver: "rxe", Devices: [2]string{"rxe0", "rxe1"}, Netdevs: [2]string{"ve0", "ve1"}, Addrs: guestAddrs, GID: 1, GID6: 2}

// guestAddrs are the addresses that vmrun gives the network interfaces of the devices.
var guestAddrs = [2]string{"10.1.0.1", "10.1.0.2"}

// gidRoCE and gidRoCE6 are the indices of the GIDs of an IPv4 and an IPv6 address where there
// are entries for RoCE v1 as well: behind those of the link-local address.
const (
	gidRoCE  = 3
	gidRoCE6 = 5
)

// softDevices are the devices of the rig where there are no others.
const softDevices = "soft0,soft1"

// TheRig returns what this guest has, or this process if it is not in a guest.
func TheRig() Rig {
	if text := os.Getenv(RigEnv); text != "" {
		var r Rig
		if err := json.Unmarshal([]byte(text), &r); err != nil {
			panic(RigEnv + ": " + err.Error())
		}
		return r
	}
	names := os.Getenv(DevicesEnv)
	if names == "" && os.Getenv(GuestEnv) != "1" {
		names = softDevices
	}
	return rigOf(names, sysfsNetdev, sysfsInfiniBand)
}

// rigOf makes the rig of the devices that are named.
func rigOf(names string, netdev func(device string) string, infiniBand func(device string) bool) Rig {
	if names == "" || names == strings.Join(rxeRig.Devices[:], ",") {
		return rxeRig
	}
	first, second, ok := strings.Cut(names, ",")
	if !ok {
		second = first
	}
	r := Rig{Devices: [2]string{first, second}}
	if isSoft(first) {
		return softRig(r.Devices)
	}
	r.Driver = strings.TrimRight(first, "0123456789")
	r.Driver = strings.TrimSuffix(r.Driver, "_")
	if r.IWARP() {
		r.Netdevs, r.Addrs = rxeRig.Netdevs, guestAddrs // which vmrun gives it in place of rxe
		return r
	}
	if r.EFA() {
		return r // it carries no IP, and has one GID
	}
	for i, d := range r.Devices {
		r.Netdevs[i] = netdev(d)
	}
	r.OnInfiniBand = infiniBand(first)
	if r.Netdevs[0] != "" {
		r.Addrs = guestAddrs
	}
	if !r.OnInfiniBand {
		r.GID, r.GID6 = gidRoCE, gidRoCE6
	}
	return r
}

// sysfsNetdev finds the network interface of an RDMA device.
func sysfsNetdev(device string) string {
	entries, err := os.ReadDir("/sys/class/infiniband/" + device + "/device/net")
	if err != nil || len(entries) == 0 {
		return ""
	}
	return entries[0].Name()
}

// sysfsInfiniBand reports whether the first port of an RDMA device is on InfiniBand.
func sysfsInfiniBand(device string) bool {
	link, err := os.ReadFile("/sys/class/infiniband/" + device + "/ports/1/link_layer")
	return err == nil && string(link) == "InfiniBand\n"
}

// InfiniBand reports whether the devices are on InfiniBand.
func (r Rig) InfiniBand() bool { return r.OnInfiniBand }

// IWARP reports whether the devices are of iWARP, which knows reliable connections alone, set up
// by the connection manager.
func (r Rig) IWARP() bool { return r.Driver == "siw" }

// EFA reports whether the devices are EFA cards of AWS, which know datagrams alone: reliable ones
// without order (SRD), and UD.
func (r Rig) EFA() bool { return r.Driver == "efa" }

// efaLacks is what EFA does not have of that which the tests ask of InfiniBand and RoCE.
var efaLacks = []string{
	"CQ resizing", "QP type UC", "SGE limits that can be exceeded", "atomics", "completions in the order of posting", "inline data of 128 bytes",
	"manual QP state changes", "memory windows", "path MTUs", "solicited events",
}

// NeedsIB skips a test that is about something which InfiniBand and RoCE have and iWARP or EFA has not,
// in words that say what: datagrams, atomics, GIDs, immediate data, changes of state by hand.
func NeedsIB(tb testing.TB, what string) {
	tb.Helper()
	if r := TheRig(); r.IWARP() || r.EFA() && slices.Contains(efaLacks, what) {
		Skip(tb, &lacks{what, r.Driver})
	}
}

// NotOnEFA skips a test that is about something which EFA cards do not have or do, in words
// that say what.
func NotOnEFA(tb testing.TB, what string) {
	tb.Helper()
	if r := TheRig(); r.EFA() {
		Skip(tb, &lacks{what, r.Driver})
	}
}

// Needs skips a test that is about something which only some drivers' devices have or do, in
// words that say what. As with every skip, the list of missing features of the driver must say so.
func Needs(tb testing.TB, what string, drivers ...string) {
	tb.Helper()
	if r := TheRig(); !slices.Contains(drivers, r.Driver) {
		Skip(tb, &lacks{what, r.Driver})
	}
}

// NeedsArch skips a test that is about something which only some architectures have, in words that
// say what.
func NeedsArch(tb testing.TB, what string, archs ...string) {
	tb.Helper()
	if !slices.Contains(archs, runtime.GOARCH) {
		Skip(tb, &lacks{what, runtime.GOARCH})
	}
}

// NotSupported records that the driver does not support what the test is about, in words that say
// what. The test goes on, for instance to check how that is refused.
func NotSupported(tb testing.TB, what string) {
	tb.Helper()
	Lacks(tb, &lacks{what, TheRig().Driver})
}

// NeedsLinks skips a test that adds and deletes RDMA devices.
func NeedsLinks(tb testing.TB) {
	tb.Helper()
	NeedsKernel(tb, "links that can be added")
	Needs(tb, "links that can be added", rxeRig.Driver)
	Tags(tb, Machine)
}

// NeedsCard skips a test that needs what only some modelled cards have, in words that say what.
func NeedsCard(tb testing.TB, what string, has bool) {
	tb.Helper()
	if !has {
		Skip(tb, &lacks{what, TheRig().Driver})
	}
}

// NeedsInfiniBand skips a test that is about something which only InfiniBand has, in words that say
// what.
func NeedsInfiniBand(tb testing.TB, what string) {
	tb.Helper()
	if r := TheRig(); !r.InfiniBand() {
		Skip(tb, &lacks{what, r.Driver})
	}
}

// NeedsRoCE skips a test that is about something which only Ethernet has, in words that say what.
func NeedsRoCE(tb testing.TB, what string) {
	tb.Helper()
	if r := TheRig(); r.InfiniBand() || r.EFA() {
		Skip(tb, &lacks{what, r.Driver})
	}
}

// NeedsModel skips a test that has a card fail, which a model alone lets itself be told.
func NeedsModel(tb testing.TB) {
	tb.Helper()
	Needs(tb, "faults that can be injected", "mlx5")
	if !Modelled() {
		tb.Skipf("%s is not set: real cards do not fail when they are told to", ModelEnv)
	}
}

// lacks is the error for something that a driver cannot have.
type lacks struct{ what, driver string }

// Error implements error.
func (l *lacks) Error() string { return l.driver + " has no " + l.what }

// Unsupported makes it a missing feature that no kernel will bring.
func (l *lacks) Unsupported() (string, [2]int) { return l.what, [2]int{} }
