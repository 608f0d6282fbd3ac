package uverbs

import (
	"fmt"
	"path/filepath"
	"strconv"
	"syscall"

	"github.com/goverbs/goverbs/uverbs/ib"
	"github.com/goverbs/goverbs/uverbs/internal/abi"
)

// Attr returns the properties and limits of the device (ibv_query_device, ibv_query_device_ex). They were read
// when the device was opened and do not change.
func (d *Device) Attr() DeviceAttr { return d.attr }

// queryDevice reads the attributes from the kernel.
func (d *Device) queryDevice() error {
	req := &abi.ExQueryDevice{}
	resp := &abi.ExQueryDeviceResp{}
	errno := d.cmd.legacy(abi.IB_USER_VERBS_EX_CMD_QUERY_DEVICE|abi.IB_USER_VERBS_CMD_FLAG_EXTENDED, bytesOf(req), bytesOf(resp), udata{})
	if errno == syscall.EOPNOTSUPP || errno == syscall.ENOSYS || absent(errno) {
		old := &abi.QueryDevice{}
		errno = d.cmd.legacy(abi.IB_USER_VERBS_CMD_QUERY_DEVICE, bytesOf(old), bytesOf(&resp.Base), udata{})
	}
	if errno != 0 {
		return d.cmd.fail("QUERY_DEVICE", errno, "")
	}
	b := &resp.Base
	d.attr = DeviceAttr{
		FirmwareVersion: firmware(b.FWVer),
		NodeGUID:        ib.GUID(b.NodeGUID.Get()),
		SysImageGUID:    ib.GUID(b.SysImageGUID.Get()),
		MaxMRSize:       b.MaxMRSize,
		PageSizeCap:     b.PageSizeCap,
		VendorID:        b.VendorID,
		VendorPartID:    b.VendorPartID,
		HWVersion:       b.HWVer,
		MaxQP:           b.MaxQP,
		MaxQPWR:         b.MaxQPWR,
		CapFlags:        uint64(b.DeviceCapFlags) | resp.DeviceCapFlagsEx,
		MaxSGE:          b.MaxSGE,
		MaxSGERead:      b.MaxSGERD,
		MaxCQ:           b.MaxCQ,
		MaxCQE:          b.MaxCQE,
		MaxMR:           b.MaxMR,
		MaxPD:           b.MaxPD,
		MaxQPRdAtom:     b.MaxQPRDAtom,
		MaxEERdAtom:     b.MaxEERDAtom,
		MaxResRdAtom:    b.MaxResRDAtom,
		MaxQPInitRdAtom: b.MaxQPInitRDAtom,
		MaxEEInitRdAtom: b.MaxEEInitRDAtom,
		AtomicCap:       ib.AtomicCap(b.AtomicCap),
		MaxEE:           b.MaxEE,
		MaxRDD:          b.MaxRDD,
		MaxMW:           b.MaxMW,
		MaxRawIPv6QP:    b.MaxRawIPv6QP,
		MaxRawEthyQP:    b.MaxRawEthyQP,
		MaxMcastGroup:   b.MaxMcastGrp,
		MaxMcastQP:      b.MaxMcastQPAttach,
		MaxTotalMcastQP: b.MaxTotalMcastQPAttach,
		MaxAH:           b.MaxAH,
		MaxFMR:          b.MaxFMR,
		MaxMapPerFMR:    b.MaxMapPerFMR,
		MaxSRQ:          b.MaxSRQ,
		MaxSRQWR:        b.MaxSRQWR,
		MaxSRQSGE:       b.MaxSRQSGE,
		MaxPKeys:        b.MaxPKeys,
		LocalCAAckDelay: ib.AckTimeout(b.LocalCAAckDelay),
		PhysPortCount:   b.PhysPortCnt,
		ODPGeneralCaps:  resp.ODPCaps.GeneralCaps,
		TimestampMask:   resp.TimestampMask,
		CoreClockKHz:    resp.HCACoreClock,
		MaxDMSize:       resp.MaxDMSize,
		CompVectors:     d.vectors,

		ODPCapsRC:             ODPCaps(resp.ODPCaps.PerTransportCaps.RCODPCaps),
		ODPCapsUC:             ODPCaps(resp.ODPCaps.PerTransportCaps.UCODPCaps),
		ODPCapsUD:             ODPCaps(resp.ODPCaps.PerTransportCaps.UDODPCaps),
		ODPCapsXRC:            ODPCaps(resp.XRCODPCaps),
		RSSQPTypes:            QPTypes(resp.RSSCaps.SupportedQPTs),
		MaxRWQIndTables:       resp.RSSCaps.MaxRWQIndirectionTables,
		MaxRWQIndTableSize:    resp.RSSCaps.MaxRWQIndirectionTableSize,
		MaxWQ:                 resp.MaxWQTypeRQ,
		RawPacketCaps:         RawPacketCaps(resp.RawPacketCaps),
		MaxCQModerationCount:  resp.CQModerationCaps.MaxCQModerationCount,
		MaxCQModerationPeriod: resp.CQModerationCaps.MaxCQModerationPeriod,
		TagMatching: TMCaps{
			MaxRndvHeader: resp.TMCaps.MaxRndvHdrSize,
			MaxTags:       resp.TMCaps.MaxNumTags,
			Flags:         resp.TMCaps.Flags,
			MaxOps:        resp.TMCaps.MaxOps,
			MaxSGE:        resp.TMCaps.MaxSGE,
		},
	}
	return nil
}

// firmware decodes a 64-bit version as three 16-bit parts, as libibverbs does for most devices.
func firmware(v uint64) string {
	if v == 0 {
		return ""
	}
	return fmt.Sprintf("%d.%d.%d", v>>32, v>>16&0xffff, v&0xffff)
}

// queryDriver returns the driver's part of QUERY_DEVICE, of n bytes.
func (d *Device) queryDriver(n int) ([]byte, error) {
	u := udata{out: make([]byte, n)}
	req, resp := &abi.ExQueryDevice{}, &abi.ExQueryDeviceResp{}
	errno := d.cmd.legacy(exCommand|abi.IB_USER_VERBS_EX_CMD_QUERY_DEVICE, bytesOf(req), bytesOf(resp), u)
	return u.out, d.cmd.fail("QUERY_DEVICE", errno, "")
}

// Port returns the current attributes of a port, from 1 on (ibv_query_port).
func (d *Device) Port(port uint8) (PortAttr, error) {
	if err := d.usable(); err != nil {
		return PortAttr{}, err
	}
	if port < 1 || port > d.attr.PhysPortCount {
		return PortAttr{}, argErr("Port", "port", port, "1 to %d", d.attr.PhysPortCount)
	}
	result := newCached[PortAttr](d)
	resp := &abi.QueryPortRespEx{}
	cmd := newIoctl(abi.UVERBS_OBJECT_DEVICE, abi.UVERBS_METHOD_QUERY_PORT)
	defer cmd.done()
	cmd.u64(abi.UVERBS_ATTR_QUERY_PORT_PORT_NUM, uint64(port))
	cmd.out(abi.UVERBS_ATTR_QUERY_PORT_RESP, bytesOf(resp))
	errno := d.cmd.ioctl(cmd)
	if absent(errno) {
		req := &abi.QueryPort{PortNum: port}
		errno = d.cmd.legacy(abi.IB_USER_VERBS_CMD_QUERY_PORT, bytesOf(req), bytesOf(&resp.LegacyResp), udata{})
	}
	if errno != 0 {
		return PortAttr{}, about(d.cmd.fail("QUERY_PORT", errno, ""), "", fmt.Sprintf("port %d", port))
	}
	r := &resp.LegacyResp
	attr := PortAttr{
		State:         ib.PortState(r.State),
		MaxMTU:        ib.MTU(r.MaxMTU),
		ActiveMTU:     ib.MTU(r.ActiveMTU),
		GIDTableLen:   int(r.GIDTblLen),
		CapFlags:      r.PortCapFlags,
		MaxMsgSize:    r.MaxMsgSz,
		BadPKeyCount:  r.BadPKeyCntr,
		QKeyViolCount: r.QKeyViolCntr,
		PKeyTableLen:  int(r.PKeyTblLen),
		LID:           r.LID,
		SMLID:         r.SMLID,
		LMC:           r.LMC,
		MaxVLNum:      ib.VLNum(r.MaxVLNum),
		SMSL:          r.SMSL,
		SubnetTimeout: ib.AckTimeout(r.SubnetTimeout),
		InitTypeReply: r.InitTypeReply,
		ActiveWidth:   ib.LinkWidth(r.ActiveWidth),
		ActiveSpeed:   ib.LinkSpeed(orDefault(resp.ActiveSpeedEx, uint32(r.ActiveSpeed))), // ActiveSpeedEx has more bits
		PhysState:     ib.PhysState(r.PhysState),
		LinkLayer:     ib.LinkLayer(r.LinkLayer),
		Flags:         r.Flags,
		CapFlags2:     resp.PortCapFlags2,
	}
	result.value = attr
	d.ports.ports[port].Store(result)
	return attr, nil
}

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

// PKey returns an entry of a port's partition key table (ibv_query_pkey). On RoCE the only
// entry is 0xffff. For a device of the kernel it reads sysfs, because there is no command for it. The
// error matches [io/fs.ErrNotExist] if sysfs is not mounted at /sys or belongs to another network
// namespace.
func (d *Device) PKey(port uint8, index int) (uint16, error) {
	attr, err := d.Port(port)
	if err != nil {
		return 0, err
	}
	if index < 0 || index >= attr.PKeyTableLen {
		return 0, argErr("PKey", "index", index, "0 to %d", attr.PKeyTableLen-1)
	}
	return d.pkey(port, index)
}

// pkey is PKey for an index of the table.
func (d *Device) pkey(port uint8, index int) (uint16, error) {
	if d.info.InProcess {
		if keys := d.info.inproc.PKeys(port); index < len(keys) {
			return keys[index], nil
		}
		return 0, nil // it is not used
	}
	return sysfsPKey(sysClassInfiniband, d.Name(), port, index)
}

// PKeyIndex returns the index of a partition key in a port's table (ibv_get_pkey_index). It
// compares all 16 bits, including the membership bit. The error matches [io/fs.ErrNotExist] if the
// table does not contain the key. It also returns the errors of [Device.PKey].
func (d *Device) PKeyIndex(port uint8, pkey uint16) (int, error) {
	attr, err := d.Port(port)
	if err != nil {
		return 0, err
	}
	return pkeyIndex(func(index int) (uint16, error) { return d.pkey(port, index) }, d.Name(), port, attr.PKeyTableLen, pkey)
}

// sysfsPKey reads a partition key below root.
func sysfsPKey(root, device string, port uint8, index int) (uint16, error) {
	text, err := readLine(filepath.Join(root, device, "ports", strconv.Itoa(int(port)), "pkeys", strconv.Itoa(index)))
	if err != nil {
		return 0, fmt.Errorf("uverbs: %s: read partition key %d of port %d from sysfs: %w", device, index, port, err)
	}
	pkey, err := strconv.ParseUint(text, 0, 16)
	if err != nil {
		return 0, fmt.Errorf("uverbs: %s: partition key %d of port %d: %w", device, index, port, err)
	}
	return uint16(pkey), nil
}
