package qemu

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// Link makes a link for two machines and gives its ends. It is a pair of datagram
// sockets: one Ethernet frame is one datagram, a full queue makes the sender wait,
// and nothing is left behind. A stream (-netdev socket, -netdev stream) would do as
// well, but TCP is twenty times as slow for ping-pong: Nagle's algorithm meets
// delayed acknowledgement.
func Link() ([2]*os.File, error) {
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return [2]*os.File{}, fmt.Errorf("socketpair: %w", err)
	}
	return [2]*os.File{os.NewFile(uintptr(pair[0]), "link"), os.NewFile(uintptr(pair[1]), "link")}, nil
}

// CheckLink returns an error if this QEMU cannot join two machines.
func (p *Program) CheckLink(ctx context.Context) error {
	argv := append(append([]string{}, p.Argv...), "-machine", "none", "-netdev", "help")
	var stderr bytes.Buffer
	cmd := exec.CommandContext(ctx, argv[0], argv[1:]...)
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		return fmt.Errorf("QEMU -netdev help: %w: %s", err, strings.TrimSpace(stderr.String()))
	}
	if !slices.Contains(strings.Fields(string(out)), "dgram") {
		return fmt.Errorf("QEMU %s can't join two guests: it does not support -netdev dgram, which QEMU has since 7.2; name another one with -qemu", p.Argv[0])
	}
	return nil
}
