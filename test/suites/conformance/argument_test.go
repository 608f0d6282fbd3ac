package conformance

import (
	"strconv"
	"strings"
	"testing"

	"github.com/goverbs/goverbs/test/testenv"
	"github.com/goverbs/goverbs/uverbs"
	"github.com/goverbs/goverbs/uverbs/ib"
)

func TestGIDIndex(t *testing.T) {
	testenv.NeedsIB(t, "GIDs")
	eachPath(t, func(t *testing.T) {
		testenv.NeedsRoCE(t, "Ethernet")
		dev := openDevice(t, deviceName)
		for _, index := range []int{200, 5000} {
			s := newSide(t, dev, uverbs.QPOptions{Path: uverbs.PathOptions{GIDIndex: new(index)}})
			_, err := s.qp.Endpoint()
			arg := argError(t, err, "GID index")
			if arg.Given != strconv.Itoa(index) || !strings.Contains(arg.Allowed, peerName) {
				t.Errorf("error %v, want index %d and the used entries", err, index)
			}
			argError(t, s.qp.Connect(t.Context(), uverbs.Endpoint{QPN: 17, GID: ib.GID{15: 1}}), "GID index")
		}
		table, err := dev.GIDTable(1)
		must(t, err)
		for _, entry := range table {
			s := newSide(t, dev, uverbs.QPOptions{Path: uverbs.PathOptions{GIDIndex: new(entry.Index)}})
			if e, err := s.qp.Endpoint(); err != nil || e.GID != entry.GID {
				t.Errorf("index %d gives GID %s, %v, want %s", entry.Index, e.GID, err, entry.GID)
			}
		}
	})
}

func TestSizesBeyondLimits(t *testing.T) {
	testenv.Tags(t, testenv.Unordered)
	eachPath(t, func(t *testing.T) {
		dev := openDevice(t, deviceName)
		attr := dev.QueryDevice()
		_, err := dev.CreateCQ(uverbs.CQOptions{MaxCQE: int(attr.MaxCQE) + 1})
		arg := argError(t, err, "MaxCQE")
		if arg.Given != strconv.Itoa(int(attr.MaxCQE)+1) || !strings.Contains(arg.Allowed, strconv.Itoa(int(attr.MaxCQE))) {
			t.Errorf("%v names neither the given nor the allowed value", err)
		}
		_, err = dev.CreateCQ(uverbs.CQOptions{MaxCQE: 8, Vector: attr.CompVectors})
		argError(t, err, "Vector")

		cq, err := dev.CreateCQ(uverbs.CQOptions{MaxCQE: 8})
		must(t, err)
		closeLater(t, cq)
		pd, err := dev.AllocPD()
		must(t, err)
		closeLater(t, pd)
		for field, o := range map[string]uverbs.QPOptions{
			"MaxSendWR":  {MaxSendWR: int(attr.MaxQPWR) + 1},
			"MaxRecvWR":  {MaxRecvWR: int(attr.MaxQPWR) + 1},
			"MaxSendSGE": {MaxSendSGE: int(attr.MaxSGE) + 1},
			"MaxRecvSGE": {MaxRecvSGE: -1},
			"MaxInline":  {MaxInline: -1},
			"Path.Port":  {Path: uverbs.PathOptions{Port: attr.PhysPortCount + 1}},
			"Type":       {Type: 77},
		} {
			o.SendCQ, o.RecvCQ = cq, cq
			_, err := pd.CreateQP(o)
			argError(t, err, field)
		}
		_, err = pd.CreateQP(uverbs.QPOptions{RecvCQ: cq})
		argError(t, err, "SendCQ")
	})
}
