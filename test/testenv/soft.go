package testenv

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"os"
	"strings"
	"testing"
)

// soft is the driver that the names of software devices have, and the key of the list of their
// missing features, see [MainFor].
const soft = "soft"

// softKernel is the version of Linux whose rxe software devices play.
var softKernel = [2]int{7, 2}

// SoftKernel returns the name of that version, such as "7.2".
func SoftKernel() string { return fmt.Sprintf("%d.%d", softKernel[0], softKernel[1]) }

// SoftAddr returns the n-th address for software devices of this process, n being 0 or 1. No other
// process has it, since it follows from the process ID, of which there are at most 2^22.
func SoftAddr(n int) string {
	const first = 127<<24 | 1<<16 // 127.1.0.0
	var b [4]byte
	binary.BigEndian.PutUint32(b[:], uint32(first+2*os.Getpid()+n))
	return netip.AddrFrom4(b).String()
}

// softRig returns the rig of two software devices, which the package under test makes (package
// uverbs/soft).
func softRig(devices [2]string) Rig {
	return Rig{
		Driver: rxeRig.Driver, Soft: true, Devices: devices, Netdevs: [2]string{"lo", "lo"},
		Addrs: [2]string{SoftAddr(0), SoftAddr(1)}, GID: rxeRig.GID, GID6: rxeRig.GID6,
	}
}

// isSoft reports whether a device has the name of a software device.
func isSoft(device string) bool { return strings.TrimRight(device, "0123456789") == soft }

// onSoft reports whether this package runs its tests on software devices.
func onSoft() bool { return run.soft }

// inGuest reports whether the devices may be changed at will: in a VM, and if they are in the process.
func inGuest() bool { return os.Getenv(GuestEnv) == "1" || onSoft() }

// NotSoftMark stands in the output of a test that is not for software devices, before the reason. The
// matrix of results does not count the test for them.
const NotSoftMark = "testenv: this test is not for software devices: "

// NeedsKernel skips a test on software devices, if it is about something that only the kernel has, such
// as netlink, sysfs, network interfaces that go down or limits of the process, in words that say what.
func NeedsKernel(tb testing.TB, what string) {
	tb.Helper()
	if onSoft() {
		tb.Skipf("%s%s are the kernel's, and the devices are in the process", NotSoftMark, what)
	}
}

// NeedsSoft skips a test on devices of the kernel. why says in words what only software devices do. The
// matrix of results takes no notice of the test on them.
func NeedsSoft(tb testing.TB, why string) {
	tb.Helper()
	if !onSoft() {
		tb.Skipf("%s%s, and the devices are the kernel's", ElsewhereMark, why)
	}
}

// SoftFaultsEnv are the faults that software devices inject, in the text form of package uverbs/soft, such as
// loss=1%,reorder=1%,seed=7.
const SoftFaultsEnv = "GOVERBS_SOFT_FAULTS"

// SoftFaults returns the faults that the software devices of the rig are to inject.
func SoftFaults() string { return os.Getenv(SoftFaultsEnv) }

// SoftSocketsEnv, if it is set, has all packets of software devices take their UDP sockets, as between two
// processes. Otherwise the devices of a process reach each other directly.
const SoftSocketsEnv = "GOVERBS_SOFT_SOCKETS"

// SoftSockets reports whether the packets of software devices take their UDP sockets.
func SoftSockets() bool { return os.Getenv(SoftSocketsEnv) != "" }

// NeedsNoLoss skips a test while software devices lose packets, if the test needs every packet to arrive,
// or counts packets or retries. why says in words what it needs. The matrix of results takes no notice of
// the test in this run.
func NeedsNoLoss(tb testing.TB, why string) {
	tb.Helper()
	if onSoft() && SoftFaults() != "" {
		tb.Skipf("%s%s, and %s=%s loses packets", ElsewhereMark, why, SoftFaultsEnv, SoftFaults())
	}
}
