package interop

import (
	"fmt"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/goverbs/goverbs/test/testenv"
	"github.com/goverbs/goverbs/uverbs"
	"github.com/goverbs/goverbs/uverbs/ib"
)

// TestInfoJSON compares what "verbs info --json" prints with what the library returns.
func TestInfoJSON(t *testing.T) {
	testenv.Guest(t)
	dev, err := uverbs.Open(dev0, uverbs.OpenOptions{})
	must(t, err)
	defer dev.Close()
	attr := dev.Attr()
	all := verbsJSON(t, "info", "--json", dev0).([]any)
	got := all[0].(map[string]any)
	if len(all) != 1 || got["device"] != dev0 || got["driver"] != rig.Driver {
		t.Errorf("%d devices, %v, %v", len(all), got["device"], got["driver"])
	}
	wantKeys(t, got["attributes"].(map[string]any), map[string]any{
		"fw_ver": attr.FirmwareVersion, "node_guid": attr.NodeGUID.String(), "sys_image_guid": attr.SysImageGUID.String(),
		"vendor_id": fmt.Sprintf("0x%04x", attr.VendorID), "phys_port_cnt": attr.PhysPortCount, "max_qp": attr.MaxQP, "max_qp_wr": attr.MaxQPWR,
		"device_cap_flags_ex": fmt.Sprintf("0x%X", attr.CapFlags), "max_sge": attr.MaxSGE, "max_cq": attr.MaxCQ, "max_cqe": attr.MaxCQE,
		"max_mr": attr.MaxMR, "max_pd": attr.MaxPD, "max_qp_rd_atom": attr.MaxQPRdAtom, "max_srq": attr.MaxSRQ, "max_ah": attr.MaxAH,
		"atomic_cap": []string{"NONE", "HCA", "GLOB"}[attr.AtomicCap], "num_comp_vectors": attr.CompVectors,
		"completion_timestamp_mask": fmt.Sprintf("0x%x", attr.TimestampMask), "max_cq_period": attr.MaxCQModerationPeriod,
	})
	ports := got["ports"].([]any)
	if len(ports) != int(attr.PhysPortCount) {
		t.Fatalf("%d ports, want %d", len(ports), attr.PhysPortCount)
	}
	for i, p := range ports {
		attr, err := dev.Port(uint8(i + 1))
		must(t, err)
		port := p.(map[string]any)
		wantKeys(t, port, map[string]any{"port": i + 1})
		wantKeys(t, port["attributes"].(map[string]any), map[string]any{
			"state": map[ib.PortState]string{ib.PortDown: "DOWN", ib.PortActive: "ACTIVE"}[attr.State], "link_layer": attr.LinkLayer.String(),
			"max_mtu": attr.MaxMTU.Bytes(), "active_mtu": attr.ActiveMTU.Bytes(), "port_lid": attr.LID, "max_msg_sz": attr.MaxMsgSize,
			"port_cap_flags": fmt.Sprintf("0x%08x", attr.CapFlags), "pkey_tbl_len": attr.PKeyTableLen, "gid_tbl_len": attr.GIDTableLen,
			"active_width": attr.ActiveWidth.Lanes(), "active_speed": attr.ActiveSpeed.Gbps(),
		})
		if speed, err := dev.PortSpeed(uint8(i + 1)); err == nil {
			wantKeys(t, port, map[string]any{"effective_speed": speed})
		}
		table, err := dev.GIDTable(uint8(i + 1))
		must(t, err)
		gids := port["gids"].([]any)
		if len(gids) != len(table) {
			t.Fatalf("%d GIDs, want %d", len(gids), len(table))
		}
		for j, e := range table {
			want := map[string]any{"index": e.Index, "gid": e.GID.String(), "address": e.GID.Addr().String(), "type": e.Type.String()}
			if e.Netdev != 0 {
				want["netdev_index"] = e.Netdev
			}
			wantKeys(t, gids[j].(map[string]any), want)
		}
	}
}

// wantKeys compares some keys of an object.
func wantKeys(t *testing.T, got, want map[string]any) {
	t.Helper()
	for key, v := range want {
		if diff := cmp.Diff(fmt.Sprint(v), fmt.Sprint(got[key])); diff != "" {
			t.Errorf("%s (-want +got):\n%s", key, diff)
		}
	}
}
