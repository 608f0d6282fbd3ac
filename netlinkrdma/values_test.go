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
	check("enum rdma_nl_dev_type", 0, int(DeviceTypeNone), int(DeviceTypeSMI))
	check("enum ib_poll_context", 0, int(PollDirect), int(PollSoftIRQ), int(PollWorkqueue), int(PollUnboundWorkqueue))
	check("enum rdma_cm_state", 0, int(CMIdle), int(CMAddrQuery), int(CMAddrResolved), int(CMRouteQuery), int(CMRouteResolved), int(CMConnect),
		int(CMDisconnect), int(CMAddrBound), int(CMListen), int(CMDeviceRemoval), int(CMDestroying))
	check("RDMA_PS_IPOIB", 0x0002, int(PortSpaceIPoIB))
	check("RDMA_PS_TCP", 0x0106, int(PortSpaceTCP))
	check("RDMA_PS_UDP", 0x0111, int(PortSpaceUDP))
	check("RDMA_PS_IB", 0x013f, int(PortSpaceIB))
	check("enum ib_srq_type", 0, int(SRQBasic), int(SRQXRC), int(SRQTM))
	check("RDMA_NLDEV_SYS_ATTR_NETNS_MODE", 0, int(NetNSExclusive), int(NetNSShared))
	check("enum rdma_nl_counter_mode", 0, int(CounterModeNone), int(CounterModeAuto), int(CounterModeManual))
	check("enum rdma_nl_counter_mask", 1, int(GroupByQPType), int(GroupByPID))
	check("enum rdma_nl_notify_event_type", 0, int(EventRegister), int(EventUnregister), int(EventNetdevAttach), int(EventNetdevDetach), int(EventRename), int(EventNetdevRename))
}
