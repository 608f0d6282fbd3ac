// Package sa asks the subnet administrator (SA), which is part of the subnet manager, for the nodes, ports,
// links, paths, multicast groups and services of an InfiniBand subnet.
//
//	port, err := umad.Open("mlx5_0", 1)
//	client, err := sa.NewClient(port, sa.Options{})
//	nodes, err := sa.Table(ctx, client, &mad.NodeRecord{}, 0)                          // all
//	path := mad.PathRecord{SLID: 1, DLID: 7, NumbPath: 1}
//	err = client.Get(ctx, &path, mad.PathSLID|mad.PathDLID|mad.PathNumbPath)           // one
//
// A request gives a record, and a mask of the fields in which the wanted records equal it. Package mad has
// the records and the names of the fields.
//
// The client finds the subnet manager by itself, and looks for it again when it does not answer: when
// another one has taken over. It needs only QP1, so it works on virtual functions without a subnet
// management interface, too.
//
// # Errors
//
//   - [ErrNoSM]: the port knows no subnet manager, since none runs or the port is down.
//   - [ErrNotInfiniBand]: a port of RoCE; such networks have no SA. It matches [errors.ErrUnsupported], too.
//   - [*mad.StatusError]: the SA refuses the request. It matches [ErrNoRecord] if Get finds none.
//   - [*umad.TimeoutError] and the other errors of package umad.
package sa

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/goverbs/goverbs/netlinkrdma"
	"github.com/goverbs/goverbs/uverbs/ib"
	"github.com/goverbs/goverbs/uverbs/umad"
	"github.com/goverbs/goverbs/uverbs/umad/mad"
)

// ErrNoSM matches the error of a request while the port knows no subnet manager.
var ErrNoSM = errors.New("the port knows no subnet manager: none runs on the subnet, or the port is down")

// ErrNotInfiniBand matches the error of a request on a port of another network.
var ErrNotInfiniBand = fmt.Errorf("the port is not InfiniBand, and only InfiniBand has a subnet administrator: %w", errors.ErrUnsupported)

// ErrNoRecord matches the error of Get if no record equals the request.
var ErrNoRecord = errors.New("the subnet administrator has no such record")

// Options describe a client.
type Options struct {
	SM      umad.Addr     // SM is the address of the subnet manager. With LID 0 the port's LID and SL of it are used, and the other fields of SM.
	SMKey   uint64        // SMKey is the key of the subnet manager (SM_Key). With it the SA trusts requests, and shows for instance who is a member of a group.
	Timeout time.Duration // Timeout is how long a whole answer may take; 0 means 5 s.
	Tries   int           // Tries is how often a request is sent if no answer comes; 0 means 3.
	Window  int           // Window is how many requests wait for an answer at most; 0 means 16, as many as Linux 7.2 lets an agent have.
}

// Client sends requests to the subnet administrator. Its methods can be called concurrently.
type Client struct {
	port  *umad.Port
	agent *umad.Agent
	o     Options

	find chan struct{} // full while a call looks for the subnet manager

	mu sync.Mutex
	sm umad.Addr // guarded by mu: where the last request went
}

// NewClient returns a client on a port. Close it before the port.
func NewClient(port *umad.Port, o Options) (*Client, error) {
	agent, err := port.Register(umad.AgentOptions{
		Class: mad.ClassSA, Timeout: cmp.Or(o.Timeout, 5*time.Second), Tries: o.Tries, Window: o.Window})
	if err != nil {
		return nil, err
	}
	return &Client{port: port, agent: agent, o: o, find: make(chan struct{}, 1), sm: o.SM}, nil
}

// Close ends the client. Calls that wait return [os.ErrClosed].
func (c *Client) Close() error { return c.agent.Close() }

// Do sends a request with any method, and returns the answer. Set and Delete announce and withdraw
// services, memberships of groups, and subscriptions.
func (c *Client) Do(ctx context.Context, method mad.Method, record mad.Attribute, mask mad.Mask) (*mad.Packet, error) {
	req, err := mad.NewSA(method, record, mask)
	if err != nil {
		return nil, err
	}
	req.SA.SMKey = c.o.SMKey
	to, err := c.address(ctx, umad.Addr{})
	if err != nil {
		return nil, err
	}
	answer, err := c.agent.Do(ctx, to, req)
	if errors.As(err, new(*umad.TimeoutError)) && c.o.SM.LID == 0 {
		if next, e := c.address(ctx, to); e == nil && next != to {
			return c.agent.Do(ctx, next, req)
		}
	}
	return answer, err
}

// Get asks for one record, and decodes it into the given one. Without a record the error matches
// [ErrNoRecord].
func (c *Client) Get(ctx context.Context, record mad.Attribute, mask mad.Mask) error {
	p, err := c.Do(ctx, mad.MethodGet, record, mask)
	if err == nil {
		return p.Decode(record)
	}
	if noRecords(err) {
		return fmt.Errorf("%w: %w", ErrNoRecord, err)
	}
	return err
}

// Records asks for all records that equal the given one in the fields of the mask. Without one the result
// is empty. All have the type of the given one, which is not changed.
func (c *Client) Records(ctx context.Context, like mad.Attribute, mask mad.Mask) ([]mad.Attribute, error) {
	p, err := c.table(ctx, like, mask)
	if p == nil || err != nil {
		return nil, err
	}
	return mad.Records(p, like)
}

// Table is [Client.Records] for a type that is known when the program is compiled.
func Table[T any, P interface {
	*T
	mad.Attribute
}](ctx context.Context, c *Client, like P, mask mad.Mask) ([]T, error) {
	p, err := c.table(ctx, like, mask)
	if p == nil || err != nil {
		return nil, err
	}
	return mad.Table[T, P](p)
}

// table asks for records. The answer is nil if there are none.
func (c *Client) table(ctx context.Context, like mad.Attribute, mask mad.Mask) (*mad.Packet, error) {
	p, err := c.Do(ctx, mad.MethodGetTable, like, mask)
	if noRecords(err) {
		return nil, nil
	}
	return p, err
}

// noRecords reports whether an error says that there is no record.
func noRecords(err error) bool {
	var status *mad.StatusError
	return errors.As(err, &status) && status.Status == mad.StatusNoRecords
}

// AddrOf returns the address of the port with a GUID, and asks for the path to it.
func (c *Client) AddrOf(ctx context.Context, guid ib.GUID) (umad.Addr, error) {
	node := mad.NodeRecord{NodeInfo: mad.NodeInfo{PortGUID: guid}}
	if err := c.Get(ctx, &node, mad.NodePortGUID); err != nil {
		return umad.Addr{}, fmt.Errorf("port GUID %v: %w", guid, err)
	}
	own, err := LocalPort(ctx, c.port)
	if err != nil {
		return umad.Addr{}, err
	}
	path := mad.PathRecord{SLID: own.LID, DLID: node.LID, NumbPath: 1}
	if err := c.Get(ctx, &path, mad.PathSLID|mad.PathDLID|mad.PathNumbPath); err != nil {
		return umad.Addr{}, fmt.Errorf("path to LID %d: %w", node.LID, err)
	}
	return umad.Addr{LID: node.LID, SL: path.SL}, nil
}

// address returns the address of the subnet manager. It looks for it unless it has one that is not the
// given one, which did not answer. Concurrent calls look for it one after the other.
func (c *Client) address(ctx context.Context, silent umad.Addr) (umad.Addr, error) {
	if sm, ok := c.known(silent); ok {
		return sm, nil
	}
	select {
	case c.find <- struct{}{}:
		defer func() { <-c.find }()
	case <-ctx.Done():
		return umad.Addr{}, c.lost(context.Cause(ctx))
	}
	sm, ok := c.known(silent)
	if ok {
		return sm, nil // another call has found it meanwhile
	}
	own, err := LocalPort(ctx, c.port)
	if err != nil {
		return sm, err
	}
	if own.MasterSMLID == 0 {
		return sm, c.lost(ErrNoSM)
	}
	sm.LID, sm.SL = own.MasterSMLID, own.MasterSMSL
	c.mu.Lock()
	defer c.mu.Unlock()
	c.sm = sm
	return sm, nil
}

// lost is the error for why the subnet manager was not found.
func (c *Client) lost(err error) error {
	device, port := c.port.Device()
	return &umad.Error{Op: "find the subnet manager", Device: device, Port: port, Err: err}
}

// known returns the address of the last request, and whether it belongs to another subnet manager
// than the silent one.
func (c *Client) known(silent umad.Addr) (umad.Addr, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.sm, c.sm.LID != 0 && c.sm != silent
}

// kernelPorts asks the kernel for the ports of a device.
var kernelPorts = func(device string) ([]netlinkrdma.Port, error) {
	dev, err := netlinkrdma.DeviceByName(device)
	if err != nil {
		return nil, err
	}
	return netlinkrdma.Ports(dev)
}

// LocalPort returns what the port itself knows of its subnet: its LID, that of the subnet manager and more.
// On a port without QP0 the kernel says that, and only LID, MasterSMLID and PortState are set; LocalPortNum
// is the number of the port. The error matches [ErrNotInfiniBand] if the port has another link layer.
func LocalPort(ctx context.Context, port *umad.Port) (*mad.PortInfo, error) {
	info, err := portInfo(ctx, port)
	if err == nil {
		return info, nil
	}
	if !errors.Is(err, umad.ErrNoQP0) {
		return nil, err
	}
	device, number := port.Device()
	ports, e := kernelPorts(device)
	for _, p := range ports {
		switch {
		case int(p.Num) != number:
		case p.LinkLayer != ib.LinkLayerInfiniBand:
			return nil, &umad.Error{Op: "look at the subnet", Device: device, Port: number, Err: ErrNotInfiniBand}
		default:
			return &mad.PortInfo{LID: uint16(p.LID), MasterSMLID: uint16(p.SMLID), PortState: p.State, LocalPortNum: uint8(number)}, nil
		}
	}
	return nil, errors.Join(err, e)
}

// portInfo asks the port itself.
func portInfo(ctx context.Context, port *umad.Port) (*mad.PortInfo, error) {
	agent, err := port.Register(umad.AgentOptions{Class: mad.ClassSubnDirected})
	if err != nil {
		return nil, err
	}
	defer agent.Close()
	req, err := mad.NewDirectedSMP(mad.MethodGet, mad.AttrPortInfo, 0)
	if err != nil {
		return nil, err
	}
	var info mad.PortInfo
	return &info, agent.Query(ctx, umad.Addr{}, req, &info)
}
