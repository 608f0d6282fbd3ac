package netlinkrdma

import "testing"

// TestValues compares constants that the kernel tells as numbers with those of its
// rdma/ib_verbs.h, rdma/rdma_cm.h and rdma_netlink.h.
func TestValues(t *testing.T) {
	check := func(header string, first int, got ...int) {
		t.Helper()
		for i, v := range got {
			if v != first+i {
				t.Errorf("%s: value %d of the list is %d, want %d", header, i, v, first+i)
			}
		}
	}
	check("enum rdma_node_type", 1, int(NodeCA), int(NodeSwitch), int(NodeRouter), int(NodeRNIC), int(NodeUSNIC), int(NodeUSNICUDP), int(NodeUnspecified))
	check("enum rdma_nl_dev_type", 0, int(DeviceTypeNone), int(DeviceTypeSMI))
	check("enum ib_qp_type", 0, int(QPTypeSMI), int(QPTypeGSI), int(QPTypeRC), int(QPTypeUC), int(QPTypeUD), int(QPTypeRawIPv6), int(QPTypeRawEtherType))
	check("IB_QPT_RAW_PACKET", 8, int(QPTypeRawPacket), int(QPTypeXRCInit), int(QPTypeXRCTarget))
	check("IB_QPT_DRIVER", 0xff, int(QPTypeDriver))
	check("enum ib_qp_state", 0, int(QPReset), int(QPInit), int(QPRTR), int(QPRTS), int(QPSQD), int(QPSQE), int(QPErr))
	check("enum ib_mig_state", 0, int(PathMigrated), int(PathRearm), int(PathArmed))
	check("enum ib_poll_context", 0, int(PollDirect), int(PollSoftIRQ), int(PollWorkqueue), int(PollUnboundWorkqueue))
	check("enum rdma_cm_state", 0, int(CMIdle), int(CMAddrQuery), int(CMAddrResolved), int(CMRouteQuery), int(CMRouteResolved), int(CMConnect),
		int(CMDisconnect), int(CMAddrBound), int(CMListen), int(CMDeviceRemoval), int(CMDestroying))
	check("RDMA_PS_IPOIB", 0x0002, int(PortSpaceIPoIB))
	check("RDMA_PS_TCP", 0x0106, int(PortSpaceTCP))
	check("RDMA_PS_UDP", 0x0111, int(PortSpaceUDP))
	check("RDMA_PS_IB", 0x013f, int(PortSpaceIB))
	check("enum ib_srq_type", 0, int(SRQBasic), int(SRQXRC), int(SRQTM))
	check("enum ib_port_state", 0, int(PortNop), int(PortDown), int(PortInit), int(PortArmed), int(PortActive), int(PortActiveDefer))
	check("enum ib_port_phys_state", 1, int(PhysSleep), int(PhysPolling), int(PhysDisabled), int(PhysTraining), int(PhysLinkUp), int(PhysErrorRecovery), int(PhysTest))
	check("enum rdma_link_layer", 0, int(LinkLayerUnspecified), int(LinkLayerInfiniBand), int(LinkLayerEthernet))
	check("RDMA_NLDEV_SYS_ATTR_NETNS_MODE", 0, int(NetNSExclusive), int(NetNSShared))
	check("enum rdma_nl_counter_mode", 0, int(CounterModeNone), int(CounterModeAuto), int(CounterModeManual))
	check("enum rdma_nl_counter_mask", 1, int(GroupByQPType), int(GroupByPID))
	check("enum rdma_nl_notify_event_type", 0, int(EventRegister), int(EventUnregister), int(EventNetdevAttach), int(EventNetdevDetach), int(EventRename), int(EventNetdevRename))
}
