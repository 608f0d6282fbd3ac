// Package guest is what vmrun does inside the virtual machine: it is the first
// process there (/init). It mounts the kernel's file systems, loads modules,
// sets up the network and the rxe devices, runs the programs and tells vmrun
// over a virtio-serial port (package frame) what they write and how they end.
package guest

// The names under which host and guest find each other.
const (
	// ConfigPath is where the guest finds its Config, as JSON.
	ConfigPath = "/vmrun.json"
	// EnvVar is set by the kernel's command line; it tells vmrun that it is init.
	EnvVar = "VMRUN_GUEST"
	// HostVar is the number of one of several hosts, from 1, on the kernel's command line
	// and in the programs' environment.
	HostVar = "VMRUN_HOST"
	// HostsVar is how many hosts there are, in the programs' environment.
	HostsVar = "VMRUN_HOSTS"
	// PeerVar is another host's IPv4 address in the programs' environment: host 2's on host 1,
	// and host 1's on the others.
	PeerVar = "VMRUN_PEER"
)

// What Config.Net may say.
const (
	NetRxe  = "rxe"  // NetRxe: a veth pair, or a link to the other hosts, with addresses, and an rxe device on each end.
	NetSiw  = "siw"  // NetSiw: the same with siw devices.
	NetVeth = "veth" // NetVeth: the veth pair alone.
	NetEth  = "eth"  // NetEth: the link to the other hosts alone.
	NetIB   = "ib"   // NetIB: ConnectX cards on InfiniBand, and the link to the other host, if there is one.
	NetRoCE = "roce" // NetRoCE: ConnectX cards on Ethernet, with addresses.
	NetEFA  = "efa"  // NetEFA: EFA cards, and the link to the other host, if there is one.
	NetNone = "none" // NetNone: only the loopback device.

	// NetIPoIB: ConnectX cards on InfiniBand, a subnet manager on the first, and network devices with addresses.
	NetIPoIB = "ipoib"

	// NetAnd stands between those of NetRxe, NetSiw, NetIB, NetIPoIB, NetRoCE and NetEFA that a machine
	// which is alone has together.
	NetAnd = "+"
)

// Config is what the host asks of init.
type Config struct {
	Channel []string // Channel lists the module files that the virtio-serial port needs, in load order.
	Modules []string // Modules lists the other module files, in load order.
	Net     string   // Net is one of NetRxe to NetNone, or several.
	NoSysfs bool     // NoSysfs leaves /sys unmounted while the programs run.
	Dir     string   // Dir is the programs' working directory.
	Netem   []string // Netem lists the module files of the network emulator, in load order; they are loaded on demand.
	Link    Netem    // Link is what happens on the link, in both directions, while the programs run.
	Hosts   []Host   // Hosts has an element for each machine; see HostVar.
}

// Host is what one machine does.
type Host struct {
	Env      []string  // Env is the programs' environment.
	Programs []Program // Programs are run one after the other.
	Fetch    []string  // Fetch lists files that go back to vmrun when all programs have ended.
}

// Program is one program to run.
type Program struct {
	Path string   // Path is the absolute path in the guest.
	Args []string // Args begins with the program's name, as in exec.Cmd.
}

// HelloMsg is the payload of frame.Hello.
type HelloMsg struct {
	Release string // Release is the kernel's, as uname -r prints it.
}

// StartedMsg is the payload of frame.Started.
type StartedMsg struct {
	Index int // Index is the program's place in Config.Programs.
	PID   int // PID is its process id in the guest.
}

// ExitedMsg is the payload of frame.Exited.
type ExitedMsg struct {
	Index  int    // Index is the program's place in Config.Programs.
	Status int    // Status is its exit status, if Signal is zero.
	Signal int    // Signal is the number of the signal that killed it, or zero.
	Error  string // Error says why it could not be started at all, if it could not.
}

// FileMsg is the payload of frame.File.
type FileMsg struct {
	Path string // Path is one of Config.Fetch.
	Mode uint32 // Mode holds the permission bits.
	Data []byte // Data is the next piece of the file.
	Last bool   // Last is set with the last piece.
}
