package main

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/goverbs/goverbs/test/testenv"
)

// TestSoftFirewall: the doctor finds a firewall of the kernel that forbids sending, and one that drops what has
// arrived.
func TestSoftFirewall(t *testing.T) {
	for _, c := range []struct {
		name string
		hook uint32
		want []string
	}{
		{"output", unix.NF_INET_LOCAL_OUT, []string{"a firewall of this host forbids UDP to port 4791", "operation not permitted", "nft insert rule inet filter output udp dport 4791 accept"}},
		{"input", unix.NF_INET_LOCAL_IN, []string{"a firewall of this host drops UDP to port 4791", "did not arrive within 1s", "nft insert rule inet filter input udp dport 4791 accept"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			runtime.LockOSThread() // and never unlock: the thread ends with the test
			testenv.NeedsRights(t, "a network namespace", unix.Unshare(unix.CLONE_NEWNET))
			lo, err := netlink.LinkByName("lo")
			if err := errors.Join(err, netlink.LinkSetUp(lo)); err != nil {
				t.Fatal(err)
			}
			if out, err := softRun(t, "auto", "doctor", "soft0"); err != nil || strings.Contains(out, "a firewall of this host") {
				t.Fatalf("without a firewall: %v\n%s", err, out)
			}
			err = dropAll(c.hook)
			if errors.Is(err, unix.EOPNOTSUPP) || errors.Is(err, unix.EPROTONOSUPPORT) {
				err = fmt.Errorf("%w: this kernel has no nftables: %w", fs.ErrNotExist, err)
			}
			testenv.NeedsRights(t, "a firewall", err)
			out, _ := softRun(t, "auto", "doctor", "soft0") // the ping-pong stays in the process, and succeeds
			for _, w := range c.want {
				if !strings.Contains(out, w) {
					t.Errorf("the doctor does not say %q:\n%s", w, out)
				}
			}
		})
	}
}

// dropAll makes nftables drop all packets at a hook of the thread's network namespace, as a chain without rules
// and with the policy drop does.
func dropAll(hook uint32) error {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_NETFILTER)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	word := func(v uint32) []byte { return binary.BigEndian.AppendUint32(nil, v) }
	where := nl.NewRtAttr(unix.NLA_F_NESTED|unix.NFTA_CHAIN_HOOK, nil)
	where.AddRtAttr(unix.NFTA_HOOK_HOOKNUM, word(hook))
	where.AddRtAttr(unix.NFTA_HOOK_PRIORITY, word(0))
	batch := slices.Concat(
		nfMessage(unix.NFNL_MSG_BATCH_BEGIN, 0, unix.AF_UNSPEC, unix.NFNL_SUBSYS_NFTABLES),
		nfMessage(unix.NFNL_SUBSYS_NFTABLES<<8|unix.NFT_MSG_NEWTABLE, unix.NLM_F_CREATE, unix.NFPROTO_INET, 0,
			nl.NewRtAttr(unix.NFTA_TABLE_NAME, nl.ZeroTerminated("filter"))),
		nfMessage(unix.NFNL_SUBSYS_NFTABLES<<8|unix.NFT_MSG_NEWCHAIN, unix.NLM_F_CREATE|unix.NLM_F_ACK, unix.NFPROTO_INET, 0,
			nl.NewRtAttr(unix.NFTA_CHAIN_TABLE, nl.ZeroTerminated("filter")),
			nl.NewRtAttr(unix.NFTA_CHAIN_NAME, nl.ZeroTerminated("all")),
			where,
			nl.NewRtAttr(unix.NFTA_CHAIN_POLICY, word(0)), // NF_DROP
			nl.NewRtAttr(unix.NFTA_CHAIN_TYPE, nl.ZeroTerminated("filter"))),
		nfMessage(unix.NFNL_MSG_BATCH_END, 0, unix.AF_UNSPEC, unix.NFNL_SUBSYS_NFTABLES))
	if err := unix.Sendto(fd, batch, 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		return err
	}
	answer := make([]byte, 4096)
	n, _, err := unix.Recvfrom(fd, answer, 0) // the error of the first message that failed, or the acknowledgement
	if err != nil {
		return err
	}
	if n < unix.SizeofNlMsghdr+4 {
		return errors.New("nftables: a short answer")
	}
	if errno := -int32(binary.NativeEndian.Uint32(answer[unix.SizeofNlMsghdr:])); errno != 0 {
		return unix.Errno(errno)
	}
	return nil
}

// nfMessage returns a message to nftables.
func nfMessage(typ, flags int, family uint8, subsystem uint16, attrs ...*nl.RtAttr) []byte {
	body := binary.BigEndian.AppendUint16([]byte{family, unix.NFNETLINK_V0}, subsystem)
	for _, a := range attrs {
		body = append(body, a.Serialize()...)
	}
	b := binary.NativeEndian.AppendUint32(nil, uint32(unix.SizeofNlMsghdr+len(body)))
	b = binary.NativeEndian.AppendUint16(b, uint16(typ))
	b = binary.NativeEndian.AppendUint16(b, uint16(unix.NLM_F_REQUEST|flags))
	b = append(b, make([]byte, 8)...) // sequence number and port
	return append(b, body...)
}
