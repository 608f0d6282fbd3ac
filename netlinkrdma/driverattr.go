package netlinkrdma

import (
	"encoding/binary"
	"fmt"

	"github.com/goverbs/goverbs/netlinkrdma/internal/abi"
)

// DriverAttr is an attribute that a driver adds to an object. It is a plain value.
type DriverAttr struct {
	Name  string // Name is the name that the driver uses.
	Value any    // Value is a string, an int64 or a uint64.
	Hex   bool   // Hex means that a number should be shown in hexadecimal.
}

// String returns the name and the value, as iproute2 shows them.
func (a DriverAttr) String() string {
	if a.Hex {
		return fmt.Sprintf("%s %#x", a.Name, a.Value)
	}
	return fmt.Sprintf("%s %v", a.Name, a.Value)
}

// decodeDriverAttrs decodes the driver's table (RDMA_NLDEV_ATTR_DRIVER). It has no nested entries:
// names and values follow one another, sometimes with a print type in between. The position of a
// string says whether it is a name or a value.
func decodeDriverAttrs(m *message) []DriverAttr {
	const table = abi.RDMA_NLDEV_ATTR_DRIVER
	var all []DriverAttr
	var cur DriverAttr
	named := false
	for a, err := range attributes(m.attrs[table]) {
		if err != nil {
			m.fail(table, "%w", err)
			return nil
		}
		one := &message{attrs: map[int][]byte{a.typ: a.data}}
		switch a.typ {
		case abi.RDMA_NLDEV_ATTR_DRIVER_STRING:
			if !named {
				cur, named = DriverAttr{Name: one.text(a.typ)}, true
				continue
			}
			cur.Value, cur.Hex = one.text(a.typ), false
		case abi.RDMA_NLDEV_ATTR_DRIVER_PRINT_TYPE:
			cur.Hex = one.u8(a.typ) == abi.RDMA_NLDEV_PRINT_TYPE_HEX
			if one.err == nil {
				continue
			}
		case abi.RDMA_NLDEV_ATTR_DRIVER_S32:
			cur.Value = int64(int32(binary.NativeEndian.Uint32(one.scalar(a.typ, 4))))
		case abi.RDMA_NLDEV_ATTR_DRIVER_U32:
			cur.Value = uint64(one.u32(a.typ))
		case abi.RDMA_NLDEV_ATTR_DRIVER_S64:
			cur.Value = int64(one.u64(a.typ))
		case abi.RDMA_NLDEV_ATTR_DRIVER_U64:
			cur.Value = one.u64(a.typ)
		case abi.RDMA_NLDEV_ATTR_PAD:
			continue
		default: // a value of a newer kernel
			cur, named = DriverAttr{}, false
			continue
		}
		switch {
		case one.err != nil:
			m.err = one.err
			return nil
		case !named:
			m.fail(table, "a value without a name")
			return nil
		}
		all = append(all, cur)
		cur, named = DriverAttr{}, false
	}
	if named {
		m.fail(table, "%q has no value", cur.Name)
		return nil
	}
	return all
}
