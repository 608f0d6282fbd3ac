package main

import (
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"github.com/goverbs/goverbs/uverbs"
)

// deviceReport is what "verbs info" tells of a device.
type deviceReport struct {
	Name   string            `json:"name"`
	Driver string            `json:"driver"`
	Attr   uverbs.DeviceAttr `json:"attributes"`
	Ports  []portReport      `json:"ports"`
}

// portReport is what "verbs info" tells of a port.
type portReport struct {
	Port int             `json:"port"`
	Attr uverbs.PortAttr `json:"attributes"`
	GIDs []gidReport     `json:"gids"`
}

// gidReport is an entry of the GID table.
type gidReport struct {
	Index  int    `json:"index"`
	GID    string `json:"gid"`
	Addr   string `json:"address"`
	Type   string `json:"type"`
	Netdev int    `json:"netdev_index,omitempty"`
}

func newInfo() *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "info [DEV]",
		Short: "Show a device's properties and limits, its ports and their GIDs",
		Long:  "Show the properties and limits of a device, or of every usable one, its ports and their GID tables (what ibv_devinfo -v tells).",
		Args:  arguments(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			reports, err := collectInfo(args)
			if err != nil {
				return err
			}
			if asJSON {
				return printJSON(cmd.OutOrStdout(), reports)
			}
			for i, r := range reports {
				if i > 0 {
					fmt.Fprintln(cmd.OutOrStdout())
				}
				r.print(cmd.OutOrStdout())
			}
			return nil
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return cmd
}

// collectInfo asks the named device, or every usable one.
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
			// OpenFirst says of each device what is in the way.
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
		r, err := deviceInfo(name)
		if err != nil {
			return nil, err
		}
		reports = append(reports, r)
	}
	return reports, nil
}

// deviceInfo asks one device.
func deviceInfo(name string) (r deviceReport, err error) {
	dev, err := uverbs.Open(name)
	if err != nil {
		return r, err
	}
	defer dev.Close()
	r = deviceReport{Name: name, Driver: dev.Info().Driver, Attr: dev.QueryDevice()}
	for port := 1; port <= int(r.Attr.PhysPortCount); port++ {
		p := portReport{Port: port}
		if p.Attr, err = dev.QueryPort(uint8(port)); err != nil {
			return r, err
		}
		table, err := dev.GIDTable(uint8(port))
		if err != nil {
			return r, err
		}
		for _, e := range table {
			p.GIDs = append(p.GIDs, gidReport{
				Index:  e.Index,
				GID:    e.GID.String(),
				Addr:   e.GID.Addr().String(),
				Type:   e.Type.String(),
				Netdev: e.Netdev,
			})
		}
		r.Ports = append(r.Ports, p)
	}
	return r, nil
}

// print writes the report in the manner of ibv_devinfo -v.
func (r deviceReport) print(w io.Writer) {
	a := r.Attr
	line := func(name, format string, args ...any) {
		fmt.Fprintf(w, "\t%-32s%s\n", name+":", fmt.Sprintf(format, args...))
	}
	fmt.Fprintf(w, "device: %s\n", r.Name)
	line("driver", "%s", r.Driver)
	line("fw_ver", "%s", a.FirmwareVersion)
	line("node_guid", "%s", a.NodeGUID)
	line("sys_image_guid", "%s", a.SysImageGUID)
	line("vendor_id", "0x%04x", a.VendorID)
	line("vendor_part_id", "%d", a.VendorPartID)
	line("hw_ver", "0x%X", a.HWVersion)
	line("phys_port_cnt", "%d", a.PhysPortCount)
	line("max_mr_size", "0x%x bytes", a.MaxMRSize)
	line("page_size_cap", "0x%x", a.PageSizeCap)
	line("max_qp", "%d", a.MaxQP)
	line("max_qp_wr", "%d", a.MaxQPWR)
	line("device_cap_flags", "0x%08x", uint32(a.CapFlags))
	line("device_cap_flags_ex", "0x%X", a.CapFlags)
	line("max_sge", "%d", a.MaxSGE)
	line("max_sge_rd", "%d", a.MaxSGERead)
	line("max_cq", "%d", a.MaxCQ)
	line("max_cqe", "%d", a.MaxCQE)
	line("max_mr", "%d", a.MaxMR)
	line("max_pd", "%d", a.MaxPD)
	line("max_qp_rd_atom", "%d", a.MaxQPRdAtom)
	line("max_ee_rd_atom", "%d", a.MaxEERdAtom)
	line("max_res_rd_atom", "%d", a.MaxResRdAtom)
	line("max_qp_init_rd_atom", "%d", a.MaxQPInitRdAtom)
	line("max_ee_init_rd_atom", "%d", a.MaxEEInitRdAtom)
	line("atomic_cap", "%s (%d)", a.AtomicCap, a.AtomicCap)
	line("max_ee", "%d", a.MaxEE)
	line("max_rdd", "%d", a.MaxRDD)
	line("max_mw", "%d", a.MaxMW)
	line("max_raw_ipv6_qp", "%d", a.MaxRawIPv6QP)
	line("max_raw_ethy_qp", "%d", a.MaxRawEthyQP)
	line("max_mcast_grp", "%d", a.MaxMcastGroup)
	line("max_mcast_qp_attach", "%d", a.MaxMcastQP)
	line("max_total_mcast_qp_attach", "%d", a.MaxTotalMcastQP)
	line("max_ah", "%d", a.MaxAH)
	line("max_fmr", "%d", a.MaxFMR)
	line("max_map_per_fmr", "%d", a.MaxMapPerFMR)
	line("max_srq", "%d", a.MaxSRQ)
	line("max_srq_wr", "%d", a.MaxSRQWR)
	line("max_srq_sge", "%d", a.MaxSRQSGE)
	line("max_pkeys", "%d", a.MaxPKeys)
	line("local_ca_ack_delay", "%d", a.LocalCAAckDelay)
	line("general_odp_caps", "0x%x", a.ODPGeneralCaps)
	line("rc_odp_caps", "0x%x", a.ODPCapsRC)
	line("uc_odp_caps", "0x%x", a.ODPCapsUC)
	line("ud_odp_caps", "0x%x", a.ODPCapsUD)
	line("xrc_odp_caps", "0x%x", a.ODPCapsXRC)
	line("completion_timestamp_mask", "0x%x", a.TimestampMask)
	line("hca_core_clock", "%d kHz", a.CoreClockKHz)
	line("max_dm_size", "%d bytes", a.MaxDMSize)
	line("raw_packet_caps", "0x%x", a.RawPacketCaps)
	line("rss_supported_qp", "0x%x", a.RSSQPTypes)
	line("max_rwq_indirection_tables", "%d", a.MaxRWQIndTables)
	line("max_rwq_indirection_table_size", "%d", a.MaxRWQIndTableSize)
	line("max_wq_type_rq", "%d", a.MaxWQ)
	line("tm_max_rndv_hdr_size", "%d bytes", a.TagMatching.MaxRndvHeader)
	line("tm_max_num_tags", "%d", a.TagMatching.MaxTags)
	line("tm_flags", "0x%x", a.TagMatching.Flags)
	line("tm_max_ops", "%d", a.TagMatching.MaxOps)
	line("tm_max_sge", "%d", a.TagMatching.MaxSGE)
	line("max_cq_count", "%d", a.MaxCQModerationCount)
	line("max_cq_period", "%d us", a.MaxCQModerationPeriod)
	line("num_comp_vectors", "%d", a.CompVectors)
	for _, p := range r.Ports {
		p.print(w)
	}
}

// print writes the report of a port.
func (p portReport) print(w io.Writer) {
	a := p.Attr
	line := func(name, format string, args ...any) {
		fmt.Fprintf(w, "\t\t%-24s%s\n", name+":", fmt.Sprintf(format, args...))
	}
	fmt.Fprintf(w, "\tport: %d\n", p.Port)
	line("state", "%s (%d)", a.State, a.State)
	line("max_mtu", "%d (%d)", a.MaxMTU.Bytes(), a.MaxMTU)
	line("active_mtu", "%d (%d)", a.ActiveMTU.Bytes(), a.ActiveMTU)
	line("sm_lid", "%d", a.SMLID)
	line("port_lid", "%d", a.LID)
	line("port_lmc", "0x%02x", a.LMC)
	line("link_layer", "%s", a.LinkLayer)
	line("max_msg_sz", "0x%x bytes", a.MaxMsgSize)
	line("port_cap_flags", "0x%08x", a.CapFlags)
	line("port_cap_flags2", "0x%04x", a.CapFlags2)
	line("max_vl_num", "%d", a.MaxVLNum)
	line("bad_pkey_cntr", "0x%x", a.BadPKeyCount)
	line("qkey_viol_cntr", "0x%x", a.QKeyViolCount)
	line("sm_sl", "%d", a.SMSL)
	line("pkey_tbl_len", "%d", a.PKeyTableLen)
	line("gid_tbl_len", "%d", a.GIDTableLen)
	line("subnet_timeout", "%d", a.SubnetTimeout)
	line("init_type_reply", "%d", a.InitTypeReply)
	line("active_width", "%dX (%d)", a.Width(), a.ActiveWidth)
	line("active_speed", "%.1f Gbps (%d)", a.Speed(), a.ActiveSpeed)
	line("phys_state", "%s (%d)", a.Phys(), a.PhysState)
	for _, g := range p.GIDs {
		line(fmt.Sprintf("GID[%3d]", g.Index), "%s, %s, %s", g.GID, g.Addr, g.Type)
	}
}
