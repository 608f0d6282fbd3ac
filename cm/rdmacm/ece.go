package rdmacm

import (
	"errors"
	"fmt"
	"sync"

	"github.com/goverbs/goverbs/uverbs"
)

// ECE has options for enhanced connections. An [ID] with an [ECEMode] exchanges and sets
// them. A program that makes its QP itself sends them in [ConnParam].ECE, finds those of the peer in
// [Event].Param, and sets them with [uverbs.QP.SetECE].
type ECE = uverbs.ECE

// ECEMode says whether a connection uses options for enhanced connections, which are features of the
// transport that both devices must have. The connecting side offers the options of its device, and the
// accepting side answers with those that its device has, too. librdmacm does the same with rdma_create_qp.
type ECEMode uint8

// Modes.
const (
	ECEOff      ECEMode = iota // neither offer nor accept options
	ECEOptional                // use the options that both sides have, or none if the peer does not take part
	ECERequired                // the same, but fail if there are none
)

// String returns the mode's name.
func (m ECEMode) String() string {
	switch m {
	case ECEOff:
		return "ECEOff"
	case ECEOptional:
		return "ECEOptional"
	case ECERequired:
		return "ECERequired"
	}
	return fmt.Sprintf("ECE mode %d", uint8(m))
}

// ErrNoECE means that a side requires options for enhanced connections ([ECERequired]), and the two
// sides do not have common options.
var ErrNoECE = errors.New("the two sides have no options for enhanced connections (ECE) in common")

// eceState is what an ID knows of options for enhanced connections.
type eceState struct {
	mu      sync.Mutex // guards the rest
	mode    ECEMode
	asked   ECE // what the peer has asked for, of the ID of a request
	offered ECE // what the device of this side has
	agreed  ECE
}

// SetECE says whether the connection uses options for enhanced connections; by default it does not. The
// QP must be made with [ID.CreateQP], after SetECE. The mode of a listener has no effect: set that of the
// ID of each request. With [ECERequired], CreateQP fails with [ErrNoECE] and a [uverbs.FeatureError] if the
// device has no ECE, and Accept with ErrNoECE if the request does not have suitable options. The program may then
// reject the request with [ReasonVendorOption].
func (id *ID) SetECE(mode ECEMode) error {
	if mode > ECERequired {
		return argErr("SetECE", "mode", mode, "ECEOff, ECEOptional or ECERequired")
	}
	if id.datagrams() && mode != ECEOff {
		return argErr("SetECE", "mode", mode, "ECEOff, in a port space for datagrams")
	}
	id.queues.ece.mu.Lock()
	defer id.queues.ece.mu.Unlock()
	id.queues.ece.mode = mode
	return nil
}

// ECE returns the options for enhanced connections that the QP of the ID uses. Before the connection is
// established, and if the two sides have not agreed on any, it returns the zero value.
func (id *ID) ECE() ECE {
	id.queues.ece.mu.Lock()
	defer id.queues.ece.mu.Unlock()
	return id.queues.ece.agreed
}

// offer asks a new QP for the options of its device.
func (s *eceState) offer(qp *uverbs.QP) error {
	s.mu.Lock()
	mode := s.mode
	s.mu.Unlock()
	if mode == ECEOff {
		return nil
	}
	offered, err := qp.ECE()
	s.mu.Lock()
	s.offered = offered
	s.mu.Unlock()
	switch {
	case !errors.Is(err, errors.ErrUnsupported):
		return err
	case mode == ECERequired:
		return fmt.Errorf("%w: %w", ErrNoECE, err)
	}
	return nil
}

// offeredECE returns the options to ask the peer for; the zero value is none.
func (id *ID) offeredECE() ECE {
	id.queues.ece.mu.Lock()
	defer id.queues.ece.mu.Unlock()
	return id.queues.ece.offered
}

// useECE sets the options that the peer has asked for, or has answered with, if this side takes part. It
// calls toRTR, which moves the QP to RTR. answer says that the peer answers what this side has offered.
func (id *ID) useECE(qp *uverbs.QP, peer ECE, answer bool, toRTR func() error) error {
	id.queues.ece.mu.Lock()
	s := &id.queues.ece
	mode, offered := s.mode, s.offered
	id.queues.ece.mu.Unlock()
	// Another vendor's options mean something else.
	common := offered.Any() && peer.Any() && peer.VendorID == offered.VendorID
	switch {
	case mode != ECEOff && answer && peer.VendorID != 0 && peer.VendorID != offered.VendorID:
		return fmt.Errorf("the peer answers with options %#x of vendor %#x for enhanced connections, this side has offered %#x of %#x: %w",
			peer.Options, peer.VendorID, offered.Options, offered.VendorID, ErrNoECE)
	case mode == ECERequired && !common:
		return ErrNoECE
	case mode == ECEOff || offered.VendorID == 0:
		return toRTR()
	case !common:
		peer = ECE{VendorID: offered.VendorID} // so that the QP no longer reports what was offered
	}
	if err := qp.SetECE(peer); err != nil {
		return err
	}
	if err := toRTR(); err != nil {
		return err
	}
	agreed, err := qp.ECE()
	switch {
	case err != nil:
		return err
	case !agreed.Any() && mode == ECERequired:
		return ErrNoECE
	case !agreed.Any():
		return nil
	}
	id.queues.ece.mu.Lock()
	s.agreed = agreed
	id.queues.ece.mu.Unlock()
	return nil
}

// acceptECE moves the QP of a request to RTS and returns the options for the answer: those of p, or else
// those that the two sides have in common.
func (id *ID) acceptECE(qp *uverbs.QP, p *ConnParam) (ECE, error) {
	id.queues.ece.mu.Lock()
	mode, asked := id.queues.ece.mode, id.queues.ece.asked
	id.queues.ece.mu.Unlock()
	err := id.modifyToRTS(qp, p, asked, false)
	if err != nil || p.ECE != (ECE{}) || mode == ECEOff || asked.VendorID == 0 {
		return p.ECE, err
	}
	return ECE{VendorID: asked.VendorID, Options: id.ECE().Options}, nil // the vendor of the request, as librdmacm has it
}
