package ib

import (
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"
)

// GID is a global identifier of 16 bytes in network order (union ibv_gid). On RoCE it is an IPv6
// address, or an IPv4 address mapped into IPv6: GID(addr.As16()) makes one of a [netip.Addr].
type GID [16]byte

// String returns the GID as eight groups of hexadecimal digits, as sysfs shows it.
func (g GID) String() string {
	var b strings.Builder
	for i := 0; i < len(g); i += 2 {
		if i > 0 {
			b.WriteByte(':')
		}
		fmt.Fprintf(&b, "%02x%02x", g[i], g[i+1])
	}
	return b.String()
}

// ParseGID parses a GID in the form of [GID.String], or an IP address.
func ParseGID(s string) (GID, error) {
	a, err := netip.ParseAddr(s)
	if err != nil {
		return GID{}, fmt.Errorf("ib: GID %q: %w", s, err)
	}
	if a.Zone() != "" {
		return GID{}, fmt.Errorf("ib: GID %q: a GID has no zone", s)
	}
	return a.As16(), nil
}

// MarshalText implements [encoding.TextMarshaler] with the form of [GID.String], which is also the
// form in JSON.
func (g GID) MarshalText() ([]byte, error) { return []byte(g.String()), nil }

// UnmarshalText implements [encoding.TextUnmarshaler] with [ParseGID].
func (g *GID) UnmarshalText(text []byte) error {
	parsed, err := ParseGID(string(text))
	if err == nil {
		*g = parsed
	}
	return err
}

// Addr returns the GID as an IP address. IPv4-mapped addresses are unmapped.
func (g GID) Addr() netip.Addr { return netip.AddrFrom16(g).Unmap() }

// IsZero reports whether the GID is all zeros, as in an unused table entry.
func (g GID) IsZero() bool { return g == GID{} }

// LinkLocal reports whether the GID is an IPv6 link-local address, fe80::/10.
func (g GID) LinkLocal() bool { return g[0] == 0xfe && g[1]&0xc0 == 0x80 }

// GUID is an EUI-64 that identifies a device, a port or a system (__be64 on the wire, here in host
// order).
type GUID uint64

// String returns the usual notation, four groups of four hexadecimal digits.
func (g GUID) String() string {
	return fmt.Sprintf("%04x:%04x:%04x:%04x", uint16(g>>48), uint16(g>>32), uint16(g>>16), uint16(g))
}

// ParseGUID parses a GUID in the form of [GUID.String], or a hexadecimal number with the prefix 0x.
func ParseGUID(s string) (GUID, error) {
	digits, ok := strings.CutPrefix(strings.ToLower(s), "0x")
	if groups := strings.Split(digits, ":"); !ok && len(groups) == 4 && !slices.Contains(groups, "") {
		digits, ok = "", true
		for _, g := range groups {
			digits += strings.Repeat("0", max(4-len(g), 0)) + g
		}
	}
	n, err := strconv.ParseUint(digits, 16, 64)
	if !ok || err != nil || len(digits) > 16 {
		return 0, fmt.Errorf("ib: GUID %q: allowed: four groups of hexadecimal digits, or 0x and up to 16 digits", s)
	}
	return GUID(n), nil
}

// GIDType says how packets that use a GID are encapsulated (enum ib_uverbs_gid_type).
type GIDType uint32

// GID types.
const (
	GIDTypeIB     GIDType = iota // InfiniBand
	GIDTypeRoCEv1                // Ethernet frames, not routable
	GIDTypeRoCEv2                // UDP packets, port 4791
)

// String returns the type's name.
func (t GIDType) String() string {
	switch t {
	case GIDTypeIB:
		return "IB"
	case GIDTypeRoCEv1:
		return "RoCE v1"
	case GIDTypeRoCEv2:
		return "RoCE v2"
	}
	return fmt.Sprintf("GID type %d", uint32(t))
}
