package perf

import (
	"context"
	"crypto/rand"
	"crypto/subtle"
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"github.com/goverbs/goverbs/uverbs"
	"github.com/goverbs/goverbs/uverbs/ib"
)

// A client names the addresses of its queue pairs, and they need not be those of the control connection: a host may
// have a network for RDMA alone. So that nobody can have a server send to a third host, the server connects no queue
// pair of a test before the client has proven that it receives what goes to those addresses: it fetches a random
// token by RDMA READ, over a reliable connection that serves nothing else, and tells it on the control connection.
// Until then the server answers packets from that address, and sends none of its own. On iWARP, and with the
// connection manager, queue pairs are connected by a handshake of their own; with the latter the token is fetched as
// well, since datagrams have no handshake and the kernel believes what a request says.

// pathToken is the size of the token, in bytes.
const pathToken = 16

// path is one side's end of the connection for the token.
type path struct {
	qp    *uverbs.QP
	ah    *uverbs.AH // of the peer, for SRD
	cq    *uverbs.CQ
	mr    *uverbs.MR
	token [pathToken]byte // of the server; the memory is not asked, to which a peer may have access
}

// openPath makes this side's end, towards a GID of the peer, and returns what the peer must know. It begins at an
// address of this side, if there is one.
func (e *End) openPath(remote ib.GID, local netip.Addr) (*Peer, error) {
	if e.Limits.IWARP {
		return nil, nil
	}
	p := &path{}
	access := uverbs.AccessLocalWrite
	if e.Server {
		rand.Read(p.token[:]) // never fails
		access = uverbs.AccessRemoteRead
	}
	p.mr = e.opened.MR(e.PD, pathToken, access)
	p.cq = e.opened.CQ(e.Dev, uverbs.CQOptions{Size: 1})
	o := uverbs.QPOptions{SendCQ: p.cq, RecvCQ: p.cq, MaxSendWR: 1, MaxRecvWR: 1, Path: e.qpOptions().Path}
	if o.Path.MaxRdAtomic = 1; e.Limits.srd() {
		o.Type, o.Path.MaxRdAtomic = ib.SRD, 0
	}
	if local.IsValid() {
		table, err := e.Dev.GIDTable(e.Port)
		if err != nil {
			return nil, err
		}
		table = slices.DeleteFunc(table, func(g uverbs.GIDEntry) bool {
			return g.GID.Addr() != local.Unmap().WithZone("") || g.Type != ib.GIDTypeRoCEv2
		})
		if g, ok := uverbs.ChooseGID(table, remote); ok {
			o.Path.GIDIndex = new(g.Index)
		}
	}
	p.qp = e.opened.QP(e.PD, o)
	e.opened.Do(func() error {
		if e.Limits.srd() {
			return p.qp.ReadyUD(qkey)
		}
		return p.qp.Init()
	})
	if err := e.opened.Err(); err != nil {
		return nil, err
	}
	copy(p.mr.Bytes(), p.token[:]) // zeros, of a client
	l, err := p.qp.EndpointFor(uverbs.Endpoint{GID: remote})
	if err != nil {
		return nil, err
	}
	e.path = p
	return &Peer{QPN: l.QPN, PSN: l.PSN, LID: l.LID, GID: l.GID, PKey: l.PKey, Addr: p.mr.Addr(), RKey: p.mr.RKey()}, nil
}

// connectPath connects it to the peer's.
func (e *End) connectPath(ctx context.Context, peer *Peer) error {
	if e.path == nil {
		return nil
	}
	if err := e.Routes(peer.GID); err != nil {
		return err
	}
	if e.Limits.srd() {
		var err error
		e.path.ah, err = e.ahFor(*peer)
		return err
	}
	return e.path.qp.Connect(ctx, peer.endpoint())
}

// fetchToken returns the server's token.
func (e *End) fetchToken(ctx context.Context, server *Peer) ([]byte, error) {
	p := e.path
	if p == nil {
		return nil, nil
	}
	wr := uverbs.SendWR{
		Opcode: uverbs.WRRDMARead, Flags: uverbs.SendSignaled, SGL: []uverbs.SGE{p.mr.SGE(0, pathToken)}, RemoteAddr: server.Addr, RKey: server.RKey,
	}
	if p.ah != nil {
		wr.AH, wr.RemoteQPN, wr.RemoteQKey = p.ah, server.QPN, qkey
	}
	err := p.qp.PostSend(wr)
	if err == nil {
		err = e.one(ctx, p.cq, p.qp)
	}
	if err != nil {
		return nil, fmt.Errorf("the first RDMA READ, before any test: %w", err)
	}
	return p.mr.Bytes()[:pathToken], nil
}

// errToken says that a client may not be where its queue pairs are.
var errToken = refuse(errors.New("the client has not read the token of this test, so it may not be at the address that it has given"))

// checkToken compares what a client says that the token is.
func (e *End) checkToken(token []byte) error {
	if e.path != nil && subtle.ConstantTimeCompare(token, e.path.token[:]) != 1 {
		return errToken
	}
	return nil
}

// samePlace refuses the queue pairs of a peer that are not all where its end of the path is.
func samePlace(peers []Peer, path *Peer) error {
	for i := range peers {
		if p := &peers[i]; p.GID != path.GID || p.LID != path.LID {
			return refusef("queue pair %d in peers is at GID %s, LID %d, allowed: GID %s, LID %d, as in path", i, p.GID, p.LID, path.GID, path.LID)
		}
	}
	return nil
}

// connectedTo refuses a queue pair that the connection manager has connected to somewhere else than the path.
func (e *End) connectedTo(qp *uverbs.QP, peer *Peer) error {
	attr, err := qp.Query()
	if err != nil {
		return err
	}
	if attr.AH.Global && attr.AH.GRH.DGID != peer.GID {
		return refusef("the connection manager has connected a queue pair to GID %s, allowed: %s, of path", attr.AH.GRH.DGID, peer.GID)
	}
	return nil
}
