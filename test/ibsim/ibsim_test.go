package ibsim

import (
	"fmt"
	"strings"
	"testing"

	"github.com/goverbs/goverbs/test/testenv"
	"github.com/goverbs/goverbs/uverbs/umad"
	"github.com/goverbs/goverbs/uverbs/umad/mad"
)

// must fails a test on an error.
var must = testenv.Must

// register makes an agent.
func register(t *testing.T, p *umad.Port, o umad.AgentOptions) *umad.Agent {
	t.Helper()
	a, err := p.Register(o)
	must(t, err)
	return a
}

// TestSim: a port sends SMPs by directed route and by LID, after opensm has brought up the subnet, sees
// a link go down and come back, and programs run.
func TestSim(t *testing.T) {
	s := Start(t, FatTree(20))
	s.OpenSM("h1", false)
	p := s.Port("h2")
	directed := register(t, p, umad.AgentOptions{Class: mad.ClassSubnDirected})
	req, err := mad.NewDirectedSMP(mad.MethodGet, mad.AttrNodeDescription, 0, 1)
	must(t, err)
	var d mad.NodeDescription
	if err := directed.Query(t.Context(), umad.Addr{}, req, &d); err != nil || d.NodeString != "leaf1" {
		t.Errorf("behind port 1 is %q, %v", d.NodeString, err)
	}
	var own mad.PortInfo
	byLID := register(t, p, umad.AgentOptions{Class: mad.ClassSubnLID})
	if req, err = mad.NewDirectedSMP(mad.MethodGet, mad.AttrPortInfo, 0); err != nil {
		t.Fatal(err)
	}
	if err := directed.Query(t.Context(), umad.Addr{}, req, &own); err != nil || own.LID == 0 || own.MasterSMLID == 0 {
		t.Fatalf("LID %d, SM LID %d, %v", own.LID, own.MasterSMLID, err)
	}
	if err := byLID.Query(t.Context(), umad.Addr{LID: own.MasterSMLID}, mad.NewSMP(mad.MethodGet, mad.AttrNodeDescription, 0), &d); err != nil || d.NodeString != "h1" {
		t.Errorf("the subnet manager is on %q, %v", d.NodeString, err)
	}
	if out := s.Output("h3", "iblinkinfo"); strings.Count(out, "CA: ") != 20 || strings.Count(out, "Switch: ") != 2+9 {
		t.Errorf("iblinkinfo:\n%s", out)
	}
	s.Do(`Unlink "h3"[1]`)
	if out := s.Output("h2", "iblinkinfo"); strings.Count(out, "CA: ") != 19 {
		t.Errorf("iblinkinfo after the link was cut:\n%s", out)
	}
	s.Do(`Relink "h3"[1]`)
	if out := s.Output("h2", "iblinkinfo"); strings.Count(out, "CA: ") != 20 {
		t.Errorf("iblinkinfo after the link came back:\n%s", out)
	}
}

// TestServe: a port answers Debian's ibping across the subnet.
func TestServe(t *testing.T) {
	s := Start(t, FatTree(4))
	s.OpenSM("h1", false)
	a := register(t, s.ServingPort("h2"), umad.AgentOptions{Class: mad.ClassPing, OUI: mad.OUIOpenIB, Methods: []mad.Method{mad.MethodGet}})
	go a.Serve(t.Context(), func(req *mad.Packet, from umad.Addr) *mad.Packet {
		r := req.Reply()
		r.Data = []byte("here.example")
		return r
	})
	b := register(t, s.Port("h2"), umad.AgentOptions{Class: mad.ClassSubnDirected})
	req, err := mad.NewDirectedSMP(mad.MethodGet, mad.AttrPortInfo, 0)
	must(t, err)
	var own mad.PortInfo
	must(t, b.Query(t.Context(), umad.Addr{}, req, &own))
	out, errs, err := s.Run("h3", "ibping", "-c", "3", fmt.Sprint(own.LID))
	if err != nil || strings.Count(out, "Pong from here.example") != 3 {
		t.Errorf("%v\n%s%s", err, out, errs)
	}
}
