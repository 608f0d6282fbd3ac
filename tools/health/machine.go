package health

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io/fs"
	"math"
	"net"
	"net/netip"
	"os"
	"path"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/goverbs/goverbs/netlinkrdma"
	"github.com/goverbs/goverbs/uverbs"
)

// machine is what the checks look at. Tests put other functions in place.
type machine struct {
	root     fs.FS // the file system from /
	arch     string
	release  func() (string, error) // of the kernel
	sandbox  string                 // as netlinkrdma.Sandbox returns it
	who      identity
	memlock  func() (unix.Rlimit, error)
	openNode func(path string) error // opens a character device and closes it
	nodev    func(path string) bool  // whether its mount permits no devices
	netdev   func(index int) (netdev, error)

	devices    func() ([]netlinkrdma.Device, error)
	infos      func() ([]uverbs.DeviceInfo, error)
	uverbsDev  func(netlinkrdma.Device) (netlinkrdma.CharDev, error)
	cmDev      func() (netlinkrdma.CharDev, error)
	ports      func(netlinkrdma.Device) ([]netlinkrdma.Port, error)
	netnsMode  func() (string, error)
	otherNetns func() []otherNetns
	probe      func(name string) (probe, error)
	loopback   func(ctx context.Context, name string) (string, error)
	soft       func(name string) softFacts
	probeSoft  func(ctx context.Context, name string) (arrived bool, err error)
	own        func(p portFacts, iwarp bool) []ownAddr
	connect    func(ctx context.Context, device string, from netip.Addr, to string) attempt
	lookUp     func(ctx context.Context, peer string) ([]netip.AddrPort, error)
	progress   func(step string) // see Options
	glimpse    func(watched) glimpse

	onInfiniBand []string         // devices that have all ports there, among those that were examined
	allEFA       bool             // all devices of the kernel are EFA devices
	noCM         bool             // programs cannot use the connection manager of the kernel
	noConnect    bool             // see Options
	peer         string           // see Options
	peers        []netip.AddrPort // its addresses
	reached      bool             // a connection to it went through
}

// identity is whose rights count.
type identity struct {
	uid, gid int
	groups   []int
}

// String describes the identity.
func (i identity) String() string {
	return fmt.Sprintf("user %d, group %d, groups %v", i.uid, i.gid, i.groups)
}

// netdev is a network interface.
type netdev struct {
	Name    string
	Kind    string // such as "veth" or "macvlan"; empty for the interface of a card
	MTU     int
	Up      bool // set to be up
	Running bool // has a carrier
	Addrs   []string
}

// liveMachine is the machine that the program runs on.
func liveMachine() *machine {
	groups, _ := os.Getgroups() // for a hint only
	return &machine{
		root:    os.DirFS("/"),
		arch:    runtime.GOARCH,
		release: kernelRelease,
		sandbox: netlinkrdma.Sandbox(),
		who:     identity{os.Geteuid(), os.Getegid(), groups},
		memlock: func() (lim unix.Rlimit, err error) {
			err = unix.Getrlimit(unix.RLIMIT_MEMLOCK, &lim)
			return lim, err
		},
		openNode: func(path string) error {
			f, err := os.OpenFile(path, os.O_RDWR, 0)
			if err != nil {
				return err
			}
			return f.Close()
		},
		nodev: func(path string) bool {
			var fsys unix.Statfs_t
			return unix.Statfs(path, &fsys) == nil && fsys.Flags&unix.ST_NODEV != 0
		},
		netdev:     liveNetdev,
		devices:    netlinkrdma.Devices,
		infos:      uverbs.Devices,
		uverbsDev:  netlinkrdma.UverbsDev,
		cmDev:      netlinkrdma.CMDev,
		ports:      netlinkrdma.Ports,
		netnsMode:  liveNetnsMode,
		otherNetns: liveNetns,
		probe:      probeDevice,
		loopback:   loopback,
		soft:       liveSoft,
		probeSoft:  liveProbe,
		own:        liveOwn,
		connect:    liveConnect,
		lookUp:     lookUp,
		progress:   func(string) {},
		glimpse:    glimpseAt,
	}
}

// kernelRelease is what uname -r prints.
func kernelRelease() (string, error) {
	var u unix.Utsname
	if err := unix.Uname(&u); err != nil {
		return "", err
	}
	return unix.ByteSliceToString(u.Release[:]), nil
}

// liveNetdev looks for a network interface in this namespace.
func liveNetdev(index int) (netdev, error) {
	i, err := net.InterfaceByIndex(index)
	if err != nil {
		return netdev{}, err
	}
	n := netdev{Name: i.Name, MTU: i.MTU, Up: i.Flags&net.FlagUp != 0, Running: i.Flags&net.FlagRunning != 0}
	n.Kind, _ = linkKind(index) // only shown
	addrs, err := i.Addrs()
	for _, a := range addrs {
		n.Addrs = append(n.Addrs, a.String())
	}
	return n, err
}

// linkKind returns the kernel's name of the kind of a virtual network interface, such as "veth". It
// is empty for other interfaces.
func linkKind(index int) (string, error) {
	req := nl.NewNetlinkRequest(unix.RTM_GETLINK, 0)
	msg := nl.NewIfInfomsg(unix.AF_UNSPEC)
	msg.Index = int32(index)
	req.AddData(msg)
	links, err := req.Execute(unix.NETLINK_ROUTE, unix.RTM_NEWLINK)
	if err != nil || len(links) == 0 || len(links[0]) < unix.SizeofIfInfomsg {
		return "", err
	}
	attrs, err := nl.ParseRouteAttrAsMap(aligned(links[0][unix.SizeofIfInfomsg:]))
	if err != nil {
		return "", err
	}
	info, err := nl.ParseRouteAttrAsMap(aligned(attrs[unix.IFLA_LINKINFO].Value))
	return unix.ByteSliceToString(info[unix.IFLA_INFO_KIND].Value), err
}

// aligned returns b without the last attribute if that has no padding, on which the parser panics.
func aligned(b []byte) []byte { return b[:len(b)&^(unix.RTA_ALIGNTO-1)] }

// node is the file of a character device.
type node struct {
	mode       fs.FileMode
	uid, gid   uint32
	major, min uint32
}

// String describes the node as ls -ln does.
func (n node) String() string {
	return fmt.Sprintf("%s, owner %d, group %d, device %d:%d", strings.TrimPrefix(n.mode.String(), "D"), n.uid, n.gid, n.major, n.min)
}

// stat looks at a node.
func (m *machine) stat(file string) (node, error) {
	st, err := fs.Stat(m.root, strings.TrimPrefix(file, "/"))
	if err != nil {
		return node{}, err
	}
	n := node{mode: st.Mode()}
	if sys, ok := st.Sys().(*syscall.Stat_t); ok {
		n.uid, n.gid = sys.Uid, sys.Gid
		n.major, n.min = unix.Major(sys.Rdev), unix.Minor(sys.Rdev)
	}
	return n, nil
}

// exists reports whether there is a file.
func (m *machine) exists(file string) bool {
	_, err := fs.Stat(m.root, strings.TrimPrefix(file, "/"))
	return err == nil
}

// list returns the names in a directory.
func (m *machine) list(dir string) (names []string, err error) {
	entries, err := fs.ReadDir(m.root, strings.Trim(dir, "/"))
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names, err
}

// text reads a small file.
func (m *machine) text(file string) (string, error) {
	b, err := fs.ReadFile(m.root, strings.TrimPrefix(file, "/"))
	return strings.TrimSpace(string(b)), err
}

// fields reads a file of lines "NAME: VALUE", as /proc has several.
func (m *machine) fields(file string) (map[string]string, error) {
	b, err := fs.ReadFile(m.root, strings.TrimPrefix(file, "/"))
	if err != nil {
		return nil, err
	}
	values := map[string]string{}
	for s := bufio.NewScanner(bytes.NewReader(b)); s.Scan(); {
		if name, value, ok := strings.Cut(s.Text(), ":"); ok {
			values[name] = strings.TrimSpace(value)
		}
	}
	return values, nil
}

// hasCap reports whether a capability is in effect, and whether that is known.
func (m *machine) hasCap(bit uint) (has, known bool) {
	status, err := m.fields("/proc/self/status")
	if err != nil {
		return false, false
	}
	caps, err := strconv.ParseUint(status["CapEff"], 16, 64)
	if err != nil {
		return false, false
	}
	return caps>>bit&1 != 0, true
}

// userNS reports whether the process is in a user namespace of its own, where
// capabilities do not count for the limits of the machine.
func (m *machine) userNS() bool {
	text, err := m.text("/proc/self/uid_map")
	words := strings.Fields(text)
	if err != nil || len(words) < 3 {
		return false
	}
	// The first words are the only ones of the initial namespace: from inside, to outside, how many.
	return !slices.Equal(words, []string{"0", "0", strconv.FormatUint(math.MaxUint32, 10)})
}

// container says by what a container is recognized; empty if this seems to be none.
func (m *machine) container() string {
	for _, f := range []string{"/.dockerenv", "/run/.containerenv", "/run/systemd/container"} {
		if m.exists(f) {
			return f + " exists"
		}
	}
	if m.exists("/var/run/secrets/kubernetes.io") {
		return "/var/run/secrets/kubernetes.io exists"
	}
	if m.userNS() {
		return "/proc/self/uid_map maps other users"
	}
	return ""
}

// onDisk looks for a module of the running kernel. known is false without
// /lib/modules, as in most containers.
func (m *machine) onDisk(module, release string) (found, builtin, known bool) {
	dir := path.Join("/lib/modules", release)
	has := func(list string) bool {
		for line := range strings.Lines(list) {
			file, _, _ := strings.Cut(strings.TrimSpace(line), ":")
			name, _, _ := strings.Cut(path.Base(file), ".ko")
			if strings.ReplaceAll(name, "-", "_") == module {
				return true
			}
		}
		return false
	}
	list, err := m.text(path.Join(dir, "modules.builtin"))
	if err == nil && has(list) {
		return true, true, true
	}
	deps, derr := m.text(path.Join(dir, "modules.dep"))
	return derr == nil && has(deps), false, derr == nil
}
