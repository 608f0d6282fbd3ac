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
