//go:build !linux

package soft

import "net/netip"

// linkWatch stands for a network interface that does not change.
type linkWatch struct{}

func watchLink(int, netip.Addr) *linkWatch { return nil }

func (*linkWatch) start(func(linkState), func()) {}

func (*linkWatch) ownAddrs() (map[netip.Addr]bool, bool) { return nil, false }

func (*linkWatch) close() {}
