package uverbs

import (
	"fmt"

	"github.com/goverbs/goverbs/uverbs/internal/abi"
)

// PortSpeed returns the effective speed of a port, from 1 on, in Gbit/s (ibv_query_port_speed). It can
// differ from what the width and the speed in [PortAttr] say: of a port in a bond it is the speed of the
// whole bond, and a virtual function may be limited to less. It is 0 if the port is down.
//
// Linux 7.0; only mlx5 has it. Otherwise PortSpeed fails with a [FeatureError].
func (d *Device) PortSpeed(port uint8) (float64, error) {
	if err := d.usable(); err != nil {
		return 0, err
	}
	if port < 1 || port > d.attr.PhysPortCount {
		return 0, argErr("PortSpeed", "port", port, "1 to %d", d.attr.PhysPortCount)
	}
	cmd := newIoctl(abi.UVERBS_OBJECT_DEVICE, abi.UVERBS_METHOD_QUERY_PORT_SPEED)
	defer cmd.done()
	cmd.u64(abi.UVERBS_ATTR_QUERY_PORT_SPEED_PORT_NUM, uint64(port))
	var speed [8]byte // in units of 100 Mbit/s
	cmd.out(abi.UVERBS_ATTR_QUERY_PORT_SPEED_RESP, speed[:])
	if errno := d.cmd.ioctl(cmd); errno != 0 {
		return 0, about(d.cmd.fail("QUERY_PORT_SPEED", errno, ""), "", fmt.Sprintf("port %d", port))
	}
	return float64(le64(speed[:])) / 10, nil
}
