package umad

import (
	"errors"
	"testing"
	"time"

	"github.com/goverbs/goverbs/netlinkrdma"
	"github.com/goverbs/goverbs/test/testenv"
	"github.com/goverbs/goverbs/uverbs/ib"
	"github.com/goverbs/goverbs/uverbs/umad/mad"
)

// openSmall is Open for a port whose buffer has room for one MAD, so that all larger messages are read
// twice.
func openSmall(t *testing.T, device string) *Port {
	t.Helper()
	dev, err := findDevice(device, 1, netlinkrdma.UMADDev)
	must(t, err)
	f, err := openFile(dev)
	must(t, err)
	f.(*file).buf = make([]byte, hdrSize+mad.Size)
	p := NewPort(device, 1, f)
	t.Cleanup(func() { must(t, p.Close()) })
	return p
}

// ask sends a request to the subnet administrator.
func ask(t *testing.T, a *Agent, m mad.Method, record mad.Attribute, mask mad.Mask) (*mad.Packet, error) {
	t.Helper()
	dev, err := netlinkrdma.DeviceByName(a.port.device)
	must(t, err)
	ports, err := netlinkrdma.Ports(dev)
	must(t, err)
	req, err := mad.NewSA(m, record, mask)
	must(t, err)
	return a.Do(t.Context(), Addr{LID: uint16(ports[0].SMLID)}, req)
}

// TestKernelSA asks opensm for records, one by one and in tables, which the kernel assembles.
func TestKernelSA(t *testing.T) {
	testenv.Boot(t, "GOVERBS_SM", "mlx5ip")
	_, lids := openInfiniBand(t)
	a := register(t, openSmall(t, testenv.TheRig().Devices[0]), AgentOptions{Class: mad.ClassSA, Timeout: 5 * time.Second})

	p, err := ask(t, a, mad.MethodGetTable, &mad.NodeRecord{}, 0)
	must(t, err)
	nodes, err := mad.Table[mad.NodeRecord](p)
	must(t, err)
	if len(p.Data) <= 200 {
		t.Errorf("a table of %d bytes, which fits into one MAD", len(p.Data))
	}
	found := map[uint16]ib.GUID{}
	for _, n := range nodes {
		found[n.LID] = n.NodeInfo.NodeGUID
	}
	for i, name := range testenv.TheRig().Devices {
		dev, err := netlinkrdma.DeviceByName(name)
		must(t, err)
		if found[lids[i]] != dev.NodeGUID {
			t.Errorf("LID %d is node %v, want %v", lids[i], found[lids[i]], dev.NodeGUID)
		}
	}

	p, err = ask(t, a, mad.MethodGetTable, &mad.PortInfoRecord{EndportLID: lids[1]}, mad.PortEndportLID)
	must(t, err)
	if infos, err := mad.Table[mad.PortInfoRecord](p); err != nil || len(infos) != 1 || infos[0].PortInfo.LID != lids[1] {
		t.Errorf("%+v, %v", infos, err)
	}

	p, err = ask(t, a, mad.MethodGet, &mad.PathRecord{SLID: lids[0], DLID: lids[1], NumbPath: 1}, mad.PathSLID|mad.PathDLID|mad.PathNumbPath)
	must(t, err)
	if paths, err := mad.Table[mad.PathRecord](p); err != nil || len(paths) != 1 || paths[0].DLID != lids[1] || paths[0].SLID != lids[0] ||
		paths[0].MTU == 0 || paths[0].Rate == 0 || paths[0].DGID[0] != 0xfe || paths[0].PKey&0x7fff != 0x7fff {
		t.Errorf("%+v, %v", paths, err)
	}

	p, err = ask(t, a, mad.MethodGetTable, &mad.MCMemberRecord{}, 0)
	must(t, err)
	groups, err := mad.Table[mad.MCMemberRecord](p)
	for _, g := range groups { // of IPoIB
		if g.MLID < 0xc000 || g.MGID[0] != 0xff || g.QKey == 0 {
			t.Errorf("%+v", g)
		}
	}
	if err != nil || len(groups) == 0 {
		t.Errorf("%d groups, %v", len(groups), err)
	}
	checkService(t, a, nodes[0])
}

// checkService announces a service, finds it, and withdraws it.
func checkService(t *testing.T, a *Agent, node mad.NodeRecord) {
	t.Helper()
	s := mad.ServiceRecord{ServiceID: 0x1000_4711, ServicePKey: 0xffff, ServiceLease: 60, ServiceName: "umad test"}
	guid := node.NodeInfo.PortGUID
	s.ServiceGID = ib.GID{0: 0xfe, 1: 0x80}
	for i := range 8 {
		s.ServiceGID[8+i] = byte(guid >> (56 - 8*i))
	}
	s.ServiceData16[7], s.ServiceData64[1] = 0x1234, 1<<63
	const whole = mad.ServiceID | mad.ServiceGID | mad.ServicePKey | mad.ServiceLease | mad.ServiceKey | mad.ServiceName
	_, err := ask(t, a, mad.MethodSet, &s, whole|mad.ServiceData)
	must(t, err)
	p, err := ask(t, a, mad.MethodGet, &s, mad.ServiceName)
	must(t, err)
	var got mad.ServiceRecord
	if must(t, p.Decode(&got)); got.ServiceID != s.ServiceID || got.ServiceName != s.ServiceName || got.ServiceData16 != s.ServiceData16 || got.ServiceData64 != s.ServiceData64 {
		t.Errorf("%+v, want %+v", got, s)
	}
	_, err = ask(t, a, mad.MethodDelete, &s, mad.ServiceID|mad.ServiceGID|mad.ServicePKey)
	must(t, err)
	var status *mad.StatusError
	if _, err := ask(t, a, mad.MethodGet, &s, mad.ServiceName); !errors.As(err, &status) || status.Status != 0x300 {
		t.Errorf("a service that was withdrawn: %v", err)
	}
}
