package main

import (
	"fmt"
	"io"
	"strings"

	"github.com/goverbs/goverbs/tools/verbs/internal/command"
	"github.com/goverbs/goverbs/uverbs"
	"github.com/goverbs/goverbs/uverbs/ib"
)

// deviceReport is what "verbs info" prints about a device.
type deviceReport struct {
	Device     string       `json:"device"`
	Driver     string       `json:"driver"`
	InProcess  bool         `json:"in_process,omitempty"`
	Attributes attributes   `json:"attributes"`
	Ports      []portReport `json:"ports"`
}

// portReport is what "verbs info" prints about a port.
type portReport struct {
	Port       int         `json:"port"`
	Attributes attributes  `json:"attributes"`
	Speed      float64     `json:"effective_speed,omitempty"` // in Gbit/s, of a whole bond
	GIDs       []gidReport `json:"gids"`
}

// gidReport is an entry of the GID table.
type gidReport struct {
	Index       int    `json:"index"`
	GID         string `json:"gid"`
	Address     string `json:"address"`
	Type        string `json:"type,omitempty"`
	NetdevIndex int    `json:"netdev_index,omitempty"`
}

// attribute is a property of a device or port under the name that ibv_devinfo has for it.
type attribute struct {
	name  string
	value any    // in JSON: a number, or a string
	text  string // in text, if it is not the value itself
}

// attributes is a JSON object that keeps the order of its keys.
type attributes []attribute

// MarshalJSON implements json.Marshaler.
func (all attributes) MarshalJSON() ([]byte, error) {
	return command.MarshalObject(len(all), func(i int) (string, any) { return all[i].name, all[i].value })
}

// print writes a line for each attribute, with its values in one column.
func (all attributes) print(w io.Writer, indent string, width int) {
	for _, a := range all {
		text := a.text
		if text == "" {
			text = fmt.Sprint(a.value)
		}
		fmt.Fprintf(w, "%s%-*s%s\n", indent, width, a.name+":", text)
	}
}

func newInfo() *command.Command {
	var asJSON bool
	cmd := &command.Command{
		Use:   "info [flags] [DEV[/PORT]]",
		Short: "Show a device's properties and limits, its ports and their GIDs",
		Long: `Without DEV it shows every device that can be used. The names of the properties are those that
ibv_devinfo -v prints.`,
		Example: `  verbs info
  verbs info rxe0
  verbs info mlx5_0/2
  verbs info rxe0 --json | jq '.[0].ports[0].attributes.state'`,
		Args: command.Arguments(1),
		Run: func(cmd *command.Command, args []string) error {
			reports, err := collectInfo(args)
			if err != nil {
				return err
			}
			if asJSON {
				return command.PrintJSON(cmd.Out(), reports)
			}
			for i, r := range reports {
				if i > 0 {
					fmt.Fprintln(cmd.Out())
				}
				r.print(cmd.Out())
			}
			return nil
		},
	}
	command.JSONFlag(cmd, &asJSON)
	return cmd
}

// collectInfo queries the named device, or every usable one.
func collectInfo(names []string) ([]deviceReport, error) {
	if len(names) == 0 {
		infos, err := uverbs.Devices()
		if err != nil {
			return nil, err
		}
		for _, d := range infos {
			if d.Err == nil {
				names = append(names, d.Name)
			}
		}
		if len(names) == 0 {
			// The error of OpenFirst says why each device cannot be used.
			dev, err := uverbs.OpenFirst()
			if err != nil {
				return nil, err
			}
			names = append(names, dev.Name())
			if err := dev.Close(); err != nil {
				return nil, err
			}
		}
	}
	var reports []deviceReport
	for _, name := range names {
		name, only, err := splitPort(name)
		if err != nil {
			return nil, err
		}
		r, err := deviceInfo(name, int(only))
		if err != nil {
			return nil, err
		}
		reports = append(reports, r)
	}
	return reports, nil
}

// deviceInfo queries one device, with one of its ports or, if that is 0, with all of them.
func deviceInfo(name string, only int) (r deviceReport, err error) {
	dev, err := uverbs.Open(name, uverbs.OpenOptions{})
	if err != nil {
		return r, err
	}
	defer dev.Close()
	attr := dev.Attr()
	r = deviceReport{Device: name, Driver: dev.Info().Driver, InProcess: dev.Info().InProcess, Attributes: deviceAttributes(attr), Ports: []portReport{}}
	if a, ok := dev.EFA(); ok {
		r.Attributes = append(r.Attributes, efaAttributes(a)...)
	}
	ports, err := portsShown(only, int(attr.PhysPortCount))
	if err != nil {
		return r, err
	}
	for _, port := range ports {
		attr, err := dev.Port(uint8(port))
		if err != nil {
			return r, err
		}
		p := portReport{Port: port, Attributes: portAttributes(attr), GIDs: []gidReport{}}
		p.Speed, _ = dev.PortSpeed(uint8(port)) // most kernels and devices do not have it
		table, err := dev.GIDTable(uint8(port))
		if err != nil {
			return r, err
		}
		for _, e := range table {
			typ := e.Type.String()
			if attr.LinkLayer == ib.LinkLayerUnspecified { // GIDs of EFA are of no type
				typ = ""
			}
			p.GIDs = append(p.GIDs, gidReport{e.Index, e.GID.String(), e.GID.Addr().String(), typ, e.Netdev})
		}
		r.Ports = append(r.Ports, p)
	}
	return r, nil
}

// portsShown returns the ports to show of a device with so many: one of them, or all if that is 0.
func portsShown(only, count int) (ports []int, err error) {
	if only > count {
		return nil, command.Usagef("the port is %d, allowed: 1 to %d", only, count)
	}
	for port := 1; port <= count; port++ {
		if only == 0 || only == port {
			ports = append(ports, port)
		}
	}
	return ports, nil
}

// deviceAttributes lists the attributes of a device.
func deviceAttributes(a uverbs.DeviceAttr) attributes {
	return attributes{
		{"fw_ver", a.FirmwareVersion, ""},
		{"node_guid", a.NodeGUID.String(), ""},
		{"sys_image_guid", a.SysImageGUID.String(), ""},
		mask("vendor_id", "0x%04x", a.VendorID),
		{"vendor_part_id", a.VendorPartID, ""},
		mask("hw_ver", "0x%X", a.HWVersion),
		{"phys_port_cnt", a.PhysPortCount, ""},
		{"max_mr_size", a.MaxMRSize, fmt.Sprintf("0x%x bytes", a.MaxMRSize)},
		mask("page_size_cap", "0x%x", a.PageSizeCap),
		{"max_qp", a.MaxQP, ""},
		{"max_qp_wr", a.MaxQPWR, ""},
		mask("device_cap_flags", "0x%08x", uint32(a.CapFlags)),
		mask("device_cap_flags_ex", "0x%X", a.CapFlags),
		{"max_sge", a.MaxSGE, ""},
		{"max_sge_rd", a.MaxSGERead, ""},
		{"max_cq", a.MaxCQ, ""},
		{"max_cqe", a.MaxCQE, ""},
		{"max_mr", a.MaxMR, ""},
		{"max_pd", a.MaxPD, ""},
		{"max_qp_rd_atom", a.MaxQPRdAtom, ""},
		{"max_ee_rd_atom", a.MaxEERdAtom, ""},
		{"max_res_rd_atom", a.MaxResRdAtom, ""},
		{"max_qp_init_rd_atom", a.MaxQPInitRdAtom, ""},
		{"max_ee_init_rd_atom", a.MaxEEInitRdAtom, ""},
		{"atomic_cap", strings.TrimPrefix(a.AtomicCap.String(), "ATOMIC_"), fmt.Sprintf("%s (%d)", a.AtomicCap, a.AtomicCap)},
		{"max_ee", a.MaxEE, ""},
		{"max_rdd", a.MaxRDD, ""},
		{"max_mw", a.MaxMW, ""},
		{"max_raw_ipv6_qp", a.MaxRawIPv6QP, ""},
		{"max_raw_ethy_qp", a.MaxRawEthyQP, ""},
		{"max_mcast_grp", a.MaxMcastGroup, ""},
		{"max_mcast_qp_attach", a.MaxMcastQP, ""},
		{"max_total_mcast_qp_attach", a.MaxTotalMcastQP, ""},
		{"max_ah", a.MaxAH, ""},
		{"max_fmr", a.MaxFMR, ""},
		{"max_map_per_fmr", a.MaxMapPerFMR, ""},
		{"max_srq", a.MaxSRQ, ""},
		{"max_srq_wr", a.MaxSRQWR, ""},
		{"max_srq_sge", a.MaxSRQSGE, ""},
		{"max_pkeys", a.MaxPKeys, ""},
		{"local_ca_ack_delay", a.LocalCAAckDelay, ""},
		mask("general_odp_caps", "0x%x", a.ODPGeneralCaps),
		mask("rc_odp_caps", "0x%x", uint32(a.ODPCapsRC)),
		mask("uc_odp_caps", "0x%x", uint32(a.ODPCapsUC)),
		mask("ud_odp_caps", "0x%x", uint32(a.ODPCapsUD)),
		mask("xrc_odp_caps", "0x%x", uint32(a.ODPCapsXRC)),
		mask("completion_timestamp_mask", "0x%x", a.TimestampMask),
		{"hca_core_clock", a.CoreClockKHz, fmt.Sprintf("%d kHz", a.CoreClockKHz)},
		{"max_dm_size", a.MaxDMSize, fmt.Sprintf("%d bytes", a.MaxDMSize)},
		mask("raw_packet_caps", "0x%x", uint32(a.RawPacketCaps)),
		mask("rss_supported_qp", "0x%x", uint32(a.RSSQPTypes)),
		{"max_rwq_indirection_tables", a.MaxRWQIndTables, ""},
		{"max_rwq_indirection_table_size", a.MaxRWQIndTableSize, ""},
		{"max_wq_type_rq", a.MaxWQ, ""},
		{"tm_max_rndv_hdr_size", a.TagMatching.MaxRndvHeader, fmt.Sprintf("%d bytes", a.TagMatching.MaxRndvHeader)},
		{"tm_max_num_tags", a.TagMatching.MaxTags, ""},
		mask("tm_flags", "0x%x", a.TagMatching.Flags),
		{"tm_max_ops", a.TagMatching.MaxOps, ""},
		{"tm_max_sge", a.TagMatching.MaxSGE, ""},
		{"max_cq_count", a.MaxCQModerationCount, ""},
		{"max_cq_period", a.MaxCQModerationPeriod, fmt.Sprintf("%d us", a.MaxCQModerationPeriod)},
		{"num_comp_vectors", a.CompVectors, ""},
	}
}

// efaAttributes lists what only EFA devices have.
func efaAttributes(a uverbs.EFAAttr) attributes {
	yes := map[bool]string{false: "no", true: "yes"}
	return attributes{
		{"efa_rdma_read", a.RDMARead, yes[a.RDMARead]},
		{"efa_rdma_write", a.RDMAWrite, yes[a.RDMAWrite]},
		{"efa_rnr_retry", a.RNRRetry, yes[a.RNRRetry]},
		{"efa_unsolicited_write_recv", a.UnsolicitedWrite, yes[a.UnsolicitedWrite]},
		{"efa_cq_notifications", a.Notify, yes[a.Notify]},
		{"efa_max_rdma_size", a.MaxRDMASize, fmt.Sprintf("0x%x bytes", a.MaxRDMASize)},
		{"efa_max_inline", a.MaxInline, fmt.Sprintf("%d bytes", a.MaxInline)},
		{"efa_max_sq_wr", a.MaxSends, ""},
		{"efa_max_rq_wr", a.MaxRecvs, ""},
	}
}

// portAttributes lists the attributes of a port.
func portAttributes(a uverbs.PortAttr) attributes {
	return attributes{
		{"state", a.State.String(), fmt.Sprintf("PORT_%s (%d)", a.State, a.State)},
		{"max_mtu", a.MaxMTU.Bytes(), fmt.Sprintf("%d (%d)", a.MaxMTU.Bytes(), a.MaxMTU)},
		{"active_mtu", a.ActiveMTU.Bytes(), fmt.Sprintf("%d (%d)", a.ActiveMTU.Bytes(), a.ActiveMTU)},
		{"sm_lid", a.SMLID, ""},
		{"port_lid", a.LID, ""},
		{"port_lmc", a.LMC, fmt.Sprintf("0x%02x", a.LMC)},
		{"link_layer", a.LinkLayer.String(), ""},
		{"max_msg_sz", a.MaxMsgSize, fmt.Sprintf("0x%x bytes", a.MaxMsgSize)},
		mask("port_cap_flags", "0x%08x", a.CapFlags),
		mask("port_cap_flags2", "0x%04x", a.CapFlags2),
		{"max_vl_num", a.MaxVLNum, fmt.Sprintf("%d (%d)", a.MaxVLNum.Count(), a.MaxVLNum)},
		{"bad_pkey_cntr", a.BadPKeyCount, fmt.Sprintf("0x%x", a.BadPKeyCount)},
		{"qkey_viol_cntr", a.QKeyViolCount, fmt.Sprintf("0x%x", a.QKeyViolCount)},
		{"sm_sl", a.SMSL, ""},
		{"pkey_tbl_len", a.PKeyTableLen, ""},
		{"gid_tbl_len", a.GIDTableLen, ""},
		{"subnet_timeout", a.SubnetTimeout, ""},
		{"init_type_reply", a.InitTypeReply, ""},
		{"active_width", a.ActiveWidth.Lanes(), fmt.Sprintf("%dX (%d)", a.ActiveWidth.Lanes(), a.ActiveWidth)},
		{"active_speed", a.ActiveSpeed.Gbps(), fmt.Sprintf("%.1f Gbps (%d)", a.ActiveSpeed.Gbps(), a.ActiveSpeed)},
		{"phys_state", a.PhysState.Words(), fmt.Sprintf("%s (%d)", a.PhysState.Words(), a.PhysState)},
	}
}

// mask is an attribute in hexadecimal: as a JSON number, 64 bits would lose their low ones in many
// programs.
func mask[T uint16 | uint32 | uint64](name, format string, v T) attribute {
	return attribute{name, fmt.Sprintf(format, v), ""}
}

// print writes the report in the form of ibv_devinfo -v.
func (r deviceReport) print(w io.Writer) {
	fmt.Fprintf(w, "device: %s\n", r.Device)
	all := append(attributes{{"driver", driverText(r.Driver, r.InProcess), ""}}, r.Attributes...)
	all.print(w, "\t", 32)
	for _, p := range r.Ports {
		fmt.Fprintf(w, "\tport: %d\n", p.Port)
		all := p.Attributes
		if p.Speed > 0 {
			all = append(all, attribute{"effective_speed", fmt.Sprintf("%.1f Gbps", p.Speed), ""})
		}
		for _, g := range p.GIDs {
			all = append(all, attribute{fmt.Sprintf("GID[%3d]", g.Index), strings.TrimSuffix(fmt.Sprintf("%s, %s, %s", g.GID, g.Address, g.Type), ", "), ""})
		}
		all.print(w, "\t\t", 24)
	}
}
