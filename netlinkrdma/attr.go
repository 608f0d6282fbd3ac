package netlinkrdma

import (
	"encoding/binary"
	"fmt"
	"iter"
	"strconv"
	"strings"

	"github.com/goverbs/goverbs/netlinkrdma/internal/abi"
)

// The layout of netlink attributes (linux/netlink.h).
const (
	attrAlign  = 4             // NLA_ALIGNTO
	attrHeader = 4             // NLA_HDRLEN
	attrFlags  = 1<<15 | 1<<14 // NLA_F_NESTED and NLA_F_NET_BYTEORDER
)

// align rounds up to the alignment of netlink messages and attributes.
func align(n int) int { return (n + attrAlign - 1) &^ (attrAlign - 1) }

// attribute is one struct nlattr with its payload.
type attribute struct {
	typ  int
	data []byte
}

// attributes iterates over a sequence of struct nlattr. If one of them does not
// fit, it yields an error and stops.
func attributes(b []byte) iter.Seq2[attribute, error] {
	return func(yield func(attribute, error) bool) {
		for len(b) > 0 {
			if len(b) < attrHeader {
				yield(attribute{}, fmt.Errorf("netlink attribute: %d bytes left, a header needs %d", len(b), attrHeader))
				return
			}
			n := int(binary.NativeEndian.Uint16(b))
			typ := int(binary.NativeEndian.Uint16(b[2:]) &^ attrFlags)
			if n < attrHeader || n > len(b) {
				yield(attribute{}, fmt.Errorf("netlink attribute %d: length %d, allowed %d to %d", typ, n, attrHeader, len(b)))
				return
			}
			if !yield(attribute{typ, b[attrHeader:n]}, nil) {
				return
			}
			b = b[min(align(n), len(b)):]
		}
	}
}

// attrNames has the attributes that this package decodes, for errors.
var attrNames = [...]string{
	abi.RDMA_NLDEV_ATTR_DEV_INDEX:        "DEV_INDEX",
	abi.RDMA_NLDEV_ATTR_DEV_NAME:         "DEV_NAME",
	abi.RDMA_NLDEV_ATTR_PORT_INDEX:       "PORT_INDEX",
	abi.RDMA_NLDEV_ATTR_CAP_FLAGS:        "CAP_FLAGS",
	abi.RDMA_NLDEV_ATTR_FW_VERSION:       "FW_VERSION",
	abi.RDMA_NLDEV_ATTR_NODE_GUID:        "NODE_GUID",
	abi.RDMA_NLDEV_ATTR_SYS_IMAGE_GUID:   "SYS_IMAGE_GUID",
	abi.RDMA_NLDEV_ATTR_SUBNET_PREFIX:    "SUBNET_PREFIX",
	abi.RDMA_NLDEV_ATTR_LID:              "LID",
	abi.RDMA_NLDEV_ATTR_SM_LID:           "SM_LID",
	abi.RDMA_NLDEV_ATTR_LMC:              "LMC",
	abi.RDMA_NLDEV_ATTR_PORT_STATE:       "PORT_STATE",
	abi.RDMA_NLDEV_ATTR_PORT_PHYS_STATE:  "PORT_PHYS_STATE",
	abi.RDMA_NLDEV_ATTR_DEV_NODE_TYPE:    "DEV_NODE_TYPE",
	abi.RDMA_NLDEV_ATTR_DEV_PROTOCOL:     "DEV_PROTOCOL",
	abi.RDMA_NLDEV_ATTR_NDEV_INDEX:       "NDEV_INDEX",
	abi.RDMA_NLDEV_ATTR_NDEV_NAME:        "NDEV_NAME",
	abi.RDMA_NLDEV_ATTR_CHARDEV_NAME:     "CHARDEV_NAME",
	abi.RDMA_NLDEV_ATTR_CHARDEV_ABI:      "CHARDEV_ABI",
	abi.RDMA_NLDEV_ATTR_CHARDEV:          "CHARDEV",
	abi.RDMA_NLDEV_ATTR_UVERBS_DRIVER_ID: "UVERBS_DRIVER_ID",
	abi.RDMA_NLDEV_SYS_ATTR_COPY_ON_FORK: "COPY_ON_FORK",

	abi.RDMA_NLDEV_ATTR_RES_SUMMARY:                "RES_SUMMARY",
	abi.RDMA_NLDEV_ATTR_RES_SUMMARY_ENTRY_NAME:     "RES_SUMMARY_ENTRY_NAME",
	abi.RDMA_NLDEV_ATTR_RES_SUMMARY_ENTRY_CURR:     "RES_SUMMARY_ENTRY_CURR",
	abi.RDMA_NLDEV_ATTR_RES_SUMMARY_ENTRY_MAX:      "RES_SUMMARY_ENTRY_MAX",
	abi.RDMA_NLDEV_ATTR_RES_QP:                     "RES_QP",
	abi.RDMA_NLDEV_ATTR_RES_CM_ID:                  "RES_CM_ID",
	abi.RDMA_NLDEV_ATTR_RES_CQ:                     "RES_CQ",
	abi.RDMA_NLDEV_ATTR_RES_MR:                     "RES_MR",
	abi.RDMA_NLDEV_ATTR_RES_PD:                     "RES_PD",
	abi.RDMA_NLDEV_ATTR_RES_CTX:                    "RES_CTX",
	abi.RDMA_NLDEV_ATTR_RES_SRQ:                    "RES_SRQ",
	abi.RDMA_NLDEV_ATTR_RES_LQPN:                   "RES_LQPN",
	abi.RDMA_NLDEV_ATTR_RES_RQPN:                   "RES_RQPN",
	abi.RDMA_NLDEV_ATTR_RES_RQ_PSN:                 "RES_RQ_PSN",
	abi.RDMA_NLDEV_ATTR_RES_SQ_PSN:                 "RES_SQ_PSN",
	abi.RDMA_NLDEV_ATTR_RES_PATH_MIG_STATE:         "RES_PATH_MIG_STATE",
	abi.RDMA_NLDEV_ATTR_RES_TYPE:                   "RES_TYPE",
	abi.RDMA_NLDEV_ATTR_RES_STATE:                  "RES_STATE",
	abi.RDMA_NLDEV_ATTR_RES_PID:                    "RES_PID",
	abi.RDMA_NLDEV_ATTR_RES_KERN_NAME:              "RES_KERN_NAME",
	abi.RDMA_NLDEV_ATTR_RES_PS:                     "RES_PS",
	abi.RDMA_NLDEV_ATTR_RES_SRC_ADDR:               "RES_SRC_ADDR",
	abi.RDMA_NLDEV_ATTR_RES_DST_ADDR:               "RES_DST_ADDR",
	abi.RDMA_NLDEV_ATTR_RES_CQE:                    "RES_CQE",
	abi.RDMA_NLDEV_ATTR_RES_USECNT:                 "RES_USECNT",
	abi.RDMA_NLDEV_ATTR_RES_POLL_CTX:               "RES_POLL_CTX",
	abi.RDMA_NLDEV_ATTR_RES_RKEY:                   "RES_RKEY",
	abi.RDMA_NLDEV_ATTR_RES_LKEY:                   "RES_LKEY",
	abi.RDMA_NLDEV_ATTR_RES_MRLEN:                  "RES_MRLEN",
	abi.RDMA_NLDEV_ATTR_RES_LOCAL_DMA_LKEY:         "RES_LOCAL_DMA_LKEY",
	abi.RDMA_NLDEV_ATTR_RES_UNSAFE_GLOBAL_RKEY:     "RES_UNSAFE_GLOBAL_RKEY",
	abi.RDMA_NLDEV_ATTR_RES_PDN:                    "RES_PDN",
	abi.RDMA_NLDEV_ATTR_RES_CQN:                    "RES_CQN",
	abi.RDMA_NLDEV_ATTR_RES_MRN:                    "RES_MRN",
	abi.RDMA_NLDEV_ATTR_RES_CM_IDN:                 "RES_CM_IDN",
	abi.RDMA_NLDEV_ATTR_RES_CTXN:                   "RES_CTXN",
	abi.RDMA_NLDEV_ATTR_RES_SRQN:                   "RES_SRQN",
	abi.RDMA_NLDEV_ATTR_RES_SUBTYPE:                "RES_SUBTYPE",
	abi.RDMA_NLDEV_ATTR_MIN_RANGE:                  "MIN_RANGE",
	abi.RDMA_NLDEV_ATTR_MAX_RANGE:                  "MAX_RANGE",
	abi.RDMA_NLDEV_ATTR_DRIVER:                     "DRIVER",
	abi.RDMA_NLDEV_ATTR_DRIVER_STRING:              "DRIVER_STRING",
	abi.RDMA_NLDEV_ATTR_DRIVER_PRINT_TYPE:          "DRIVER_PRINT_TYPE",
	abi.RDMA_NLDEV_ATTR_DRIVER_S32:                 "DRIVER_S32",
	abi.RDMA_NLDEV_ATTR_DRIVER_U32:                 "DRIVER_U32",
	abi.RDMA_NLDEV_ATTR_DRIVER_S64:                 "DRIVER_S64",
	abi.RDMA_NLDEV_ATTR_DRIVER_U64:                 "DRIVER_U64",
	abi.RDMA_NLDEV_ATTR_RES_RAW:                    "RES_RAW",
	abi.RDMA_NLDEV_ATTR_STAT_MODE:                  "STAT_MODE",
	abi.RDMA_NLDEV_ATTR_STAT_AUTO_MODE_MASK:        "STAT_AUTO_MODE_MASK",
	abi.RDMA_NLDEV_ATTR_STAT_COUNTER:               "STAT_COUNTER",
	abi.RDMA_NLDEV_ATTR_STAT_COUNTER_ID:            "STAT_COUNTER_ID",
	abi.RDMA_NLDEV_ATTR_STAT_HWCOUNTERS:            "STAT_HWCOUNTERS",
	abi.RDMA_NLDEV_ATTR_STAT_HWCOUNTER_ENTRY_NAME:  "STAT_HWCOUNTER_ENTRY_NAME",
	abi.RDMA_NLDEV_ATTR_STAT_HWCOUNTER_ENTRY_VALUE: "STAT_HWCOUNTER_ENTRY_VALUE",
	abi.RDMA_NLDEV_ATTR_STAT_HWCOUNTER_INDEX:       "STAT_HWCOUNTER_INDEX",
	abi.RDMA_NLDEV_ATTR_STAT_HWCOUNTER_DYNAMIC:     "STAT_HWCOUNTER_DYNAMIC",
	abi.RDMA_NLDEV_ATTR_STAT_OPCOUNTER_ENABLED:     "STAT_OPCOUNTER_ENABLED",
	abi.RDMA_NLDEV_ATTR_DEV_DIM:                    "DEV_DIM",
	abi.RDMA_NLDEV_ATTR_DEV_TYPE:                   "DEV_TYPE",
	abi.RDMA_NLDEV_ATTR_PARENT_NAME:                "PARENT_NAME",
	abi.RDMA_NLDEV_ATTR_EVENT_TYPE:                 "EVENT_TYPE",
	abi.RDMA_NLDEV_SYS_ATTR_NETNS_MODE:             "NETNS_MODE",
	abi.RDMA_NLDEV_SYS_ATTR_MONITOR_MODE:           "MONITOR_MODE",
	abi.RDMA_NLDEV_SYS_ATTR_PRIVILEGED_QKEY_MODE:   "PRIVILEGED_QKEY_MODE",

	abi.RDMA_NLDEV_ATTR_FRMR_POOLS:                      "FRMR_POOLS",
	abi.RDMA_NLDEV_ATTR_FRMR_POOL_KEY:                   "FRMR_POOL_KEY",
	abi.RDMA_NLDEV_ATTR_FRMR_POOL_KEY_ATS:               "FRMR_POOL_KEY_ATS",
	abi.RDMA_NLDEV_ATTR_FRMR_POOL_KEY_ACCESS_FLAGS:      "FRMR_POOL_KEY_ACCESS_FLAGS",
	abi.RDMA_NLDEV_ATTR_FRMR_POOL_KEY_VENDOR_KEY:        "FRMR_POOL_KEY_VENDOR_KEY",
	abi.RDMA_NLDEV_ATTR_FRMR_POOL_KEY_NUM_DMA_BLOCKS:    "FRMR_POOL_KEY_NUM_DMA_BLOCKS",
	abi.RDMA_NLDEV_ATTR_FRMR_POOL_KEY_KERNEL_VENDOR_KEY: "FRMR_POOL_KEY_KERNEL_VENDOR_KEY",
	abi.RDMA_NLDEV_ATTR_FRMR_POOL_QUEUE_HANDLES:         "FRMR_POOL_QUEUE_HANDLES",
	abi.RDMA_NLDEV_ATTR_FRMR_POOL_IN_USE:                "FRMR_POOL_IN_USE",
	abi.RDMA_NLDEV_ATTR_FRMR_POOL_MAX_IN_USE:            "FRMR_POOL_MAX_IN_USE",
	abi.RDMA_NLDEV_ATTR_FRMR_POOL_PINNED_HANDLES:        "FRMR_POOL_PINNED_HANDLES",
}

// message gives typed access to the attributes of one reply and keeps the first error. A missing
// attribute reads as zero.
type message struct {
	attrs map[int][]byte
	err   error
}

// parse splits a reply into its attributes. If two have the same type, the last one counts, as in
// the kernel.
func parse(b []byte) *message {
	m := &message{attrs: make(map[int][]byte)}
	for a, err := range attributes(b) {
		if err != nil {
			m.err = err
			break
		}
		m.attrs[a.typ] = a.data
	}
	return m
}

func (m *message) fail(typ int, format string, args ...any) {
	if m.err == nil {
		name := strconv.Itoa(typ)
		if typ < len(attrNames) && attrNames[typ] != "" {
			name = attrNames[typ]
		}
		m.err = fmt.Errorf("the kernel's reply: attribute %s: %w", name, fmt.Errorf(format, args...))
	}
}

func (m *message) has(typ int) bool { return m.attrs[typ] != nil }

// entries iterates over the entries of a nested table. An error in an entry becomes the error of m
// and ends the iteration.
func (m *message) entries(table, entry int) iter.Seq[*message] {
	return func(yield func(*message) bool) {
		for a, err := range attributes(m.attrs[table]) {
			if err != nil {
				m.fail(table, "%w", err)
				return
			}
			if a.typ != entry {
				continue // from a newer kernel
			}
			e := parse(a.data)
			more := yield(e)
			if e.err != nil && m.err == nil {
				m.err = e.err
			}
			if !more || m.err != nil {
				return
			}
		}
	}
}

// need fails if one of the attributes is missing.
func (m *message) need(types ...int) {
	for _, t := range types {
		if !m.has(t) {
			m.fail(t, "missing")
		}
	}
}

// scalar returns the n bytes of an attribute, or n zeros.
func (m *message) scalar(typ, n int) []byte {
	b, ok := m.attrs[typ]
	if ok && len(b) != n {
		m.fail(typ, "%d bytes, want %d", len(b), n)
	}
	if len(b) != n {
		return make([]byte, n)
	}
	return b
}

func (m *message) u8(typ int) uint8 { return m.scalar(typ, 1)[0] }

// flag reports whether an attribute is present and not 0.
func (m *message) flag(typ int) bool { return m.u8(typ) != 0 }

func (m *message) u32(typ int) uint32 { return binary.NativeEndian.Uint32(m.scalar(typ, 4)) }

func (m *message) u64(typ int) uint64 { return binary.NativeEndian.Uint64(m.scalar(typ, 8)) }

// text returns a string that is used for display only.
func (m *message) text(typ int) string { return printable(cString(m.attrs[typ])) }

// name returns the name of a device or an interface, or "" if it is missing.
func (m *message) name(typ int) string {
	if !m.has(typ) {
		return ""
	}
	s := cString(m.attrs[typ])
	if !validName(s) {
		m.fail(typ, "%q is not a name", s)
	}
	return s
}

// cString returns the bytes before the first NUL.
func cString(b []byte) string {
	s, _, _ := strings.Cut(string(b), "\x00")
	return s
}

// validName reports whether s can be the name of a device. Such a name becomes part of a path, so
// it must be a single path element.
func validName(s string) bool {
	if s == "" || s == "." || s == ".." {
		return false
	}
	return !strings.ContainsFunc(s, func(r rune) bool { return r <= ' ' || r == '/' || r == 0x7f })
}

// printable replaces characters that could affect a terminal or a log.
func printable(s string) string {
	return strings.Map(func(r rune) rune {
		if r < ' ' || r >= 0x7f && r < 0xa0 { // C0 and C1, which terminals obey
			return '?'
		}
		return r
	}, strings.ToValidUTF8(s, "?"))
}
