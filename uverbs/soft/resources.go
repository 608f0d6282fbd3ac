package soft

import "github.com/goverbs/goverbs/uverbs/internal/abi"

// ResourceCounts are the numbers of objects that programs have on a device, as netlinkrdma.ResourceCounts are for
// the kernel's devices.
type ResourceCounts struct {
	Contexts int // Contexts is how often the device is open.
	PDs      int // PDs is the number of protection domains.
	MRs      int // MRs is the number of memory regions.
	MWs      int // MWs is the number of memory windows.
	CQs      int // CQs is the number of completion queues.
	QPs      int // QPs is the number of queue pairs.
	SRQs     int // SRQs is the number of shared receive queues.
	AHs      int // AHs is the number of address handles.
}

// Resources counts the objects of all contexts of the device. It is safe for concurrent use.
func (d *Device) Resources() (r ResourceCounts) {
	for _, c := range d.opened() {
		r.Contexts++
		for _, o := range c.handles.list() {
			switch o.kind {
			case abi.UVERBS_OBJECT_PD:
				r.PDs++
			case abi.UVERBS_OBJECT_MR:
				r.MRs++
			case abi.UVERBS_OBJECT_MW:
				r.MWs++
			case abi.UVERBS_OBJECT_CQ:
				r.CQs++
			case abi.UVERBS_OBJECT_QP:
				r.QPs++
			case abi.UVERBS_OBJECT_SRQ:
				r.SRQs++
			case abi.UVERBS_OBJECT_AH:
				r.AHs++
			}
		}
	}
	return r
}
