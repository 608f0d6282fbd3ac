package hca

import (
	"github.com/goverbs/goverbs/test/hca/engine"
	"github.com/goverbs/goverbs/test/hca/prm"
)

// A user context is what a program has that gives commands of its own (DEVX). The kernel's driver makes one
// for each program, and puts its number, the uid, into the commands about the program's objects. The card
// lets a context use no objects of another one. Commands without a uid are the driver's own.
type users struct {
	caps   map[uint32]uint32 // what each context may do
	owners map[owned]uint32
	eqs    map[uint32]bool // EQs for the CQs of all contexts
}

// owned is an object of a context.
type owned struct {
	kind string
	n    uint32
}

// logMaxUCtx is log2 of the number of user contexts. Their numbers begin where no index of a program does.
const (
	logMaxUCtx          = 12
	firstUser, lastUser = 0x2000, 0x2000 + 1<<logMaxUCtx - 1
)

// sharedUID stands for all user contexts: MLX5_SHARED_RESOURCE_UID (mlx5/driver.h).
const sharedUID = 0xffff

var userCommands = map[prm.Op]command{
	prm.CreateUCtx:  {run: (*Device).createUser, in: 0x200 / 8, out: small, phase: phaseRunning},
	prm.DestroyUCtx: {run: (*Device).destroyUser, in: small, out: small, phase: phaseRunning},
	prm.QueryLAG:    {run: (*Device).queryLAG, in: small, out: small, phase: phaseRunning, mode: RoCE},
}

// objects says of which kind an object is that a command makes, ends or uses.
var objects = map[string]struct {
	make, end prm.Op
	use       []prm.Op
}{
	"PD":               {prm.AllocPD, prm.DeallocPD, nil},
	"UAR":              {prm.AllocUAR, prm.DeallocUAR, nil},
	"XRCD":             {prm.AllocXRCD, prm.DeallocXRCD, nil},
	"transport domain": {prm.AllocTransportDomain, prm.DeallocTransportDom, nil},
	"CQ":               {prm.CreateCQ, prm.DestroyCQ, []prm.Op{prm.QueryCQ, prm.ModifyCQ}},
	"RMP":              {prm.CreateRMP, prm.DestroyRMP, []prm.Op{prm.QueryRMP, prm.ModifyRMP}},
	"XRC SRQ":          {prm.CreateXRCSRQ, prm.DestroyXRCSRQ, []prm.Op{prm.QueryXRCSRQ, prm.ArmXRCSRQ}},
	"DCT":              {prm.CreateDCT, prm.DestroyDCT, []prm.Op{prm.QueryDCT, prm.DrainDCT, prm.ArmDCT}},
	"TIS":              {prm.CreateTIS, prm.DestroyTIS, []prm.Op{prm.QueryTIS, prm.ModifyTIS}},
	"TIR":              {prm.CreateTIR, prm.DestroyTIR, []prm.Op{prm.ModifyTIR}},
	"RQT":              {prm.CreateRQT, prm.DestroyRQT, []prm.Op{prm.ModifyRQT}},
	"RQ":               {prm.CreateRQ, prm.DestroyRQ, []prm.Op{prm.QueryRQ, prm.ModifyRQ}},
	"SQ":               {prm.CreateSQ, prm.DestroySQ, []prm.Op{prm.QuerySQ, prm.ModifySQ}},
	"QP": {prm.CreateQP, prm.DestroyQP, []prm.Op{
		prm.QueryQP, prm.RST2INITQP, prm.INIT2INITQP, prm.INIT2RTRQP, prm.RTR2RTSQP, prm.RTS2RTSQP, prm.SQERR2RTSQP, prm.SQDRTSQP,
		prm.ToERRQP, prm.ToRSTQP, prm.AttachToMCG, prm.DetachFromMCG,
	}},
}

// An objectOp is what a command does with an object.
type objectOp struct {
	kind      string
	made, end bool
}

// objectOps has the commands of objects.
var objectOps = map[prm.Op]objectOp{}

func init() {
	for kind, o := range objects {
		objectOps[o.make] = objectOp{kind: kind, made: true}
		objectOps[o.end] = objectOp{kind: kind, end: true}
		for _, op := range o.use {
			objectOps[op] = objectOp{kind: kind}
		}
	}
}

func (u *users) clear() {
	u.caps, u.owners, u.eqs = map[uint32]uint32{}, map[owned]uint32{}, map[uint32]bool{}
}

// check refuses a command whose context does not exist, or does not have the object.
func (u *users) check(c *call) error {
	uid := prm.InUID.U32(c.in)
	// Drivers make EQs of CQs and counter sets of QPs for all contexts, these also on a card
	// without user contexts.
	if uid == 0 || uid == sharedUID && (c.op == prm.CreateEQ || c.op == prm.AllocQCounter) {
		return nil
	}
	if _, ok := u.caps[uid]; !ok {
		return refuse(prm.BadParam, "uid", "user context %#x does not exist", uid)
	}
	o, ok := objectOps[c.op]
	if !ok || o.made {
		return nil
	}
	switch owner, ok := u.owners[owned{o.kind, c.number()}]; {
	case !ok:
		return refuse(prm.BadResource, "uid", "user context %#x has no %s %#x", uid, o.kind, c.number())
	case owner != uid:
		return refuse(prm.BadResource, "uid", "%s %#x is of user context %#x, not of %#x", o.kind, c.number(), owner, uid)
	}
	return nil
}

// keep remembers whose object a command has made, and forgets one that is gone.
func (u *users) keep(c *call) {
	o := objectOps[c.op]
	switch uid := prm.InUID.U32(c.in); {
	case o.made && uid != 0:
		u.owners[owned{o.kind, prm.ObjectNumber.U32(c.out)}] = uid
	case o.end:
		delete(u.owners, owned{o.kind, c.number()})
	}
}

// checkEQ refuses a CQ of a context whose EQ is only the driver's.
func (u *users) checkEQ(c *call, eqn uint32) error {
	if uid := prm.InUID.U32(c.in); uid != 0 && !u.eqs[eqn] {
		return refuse(prm.BadResource, "CQ c_eqn", "EQ %#x is not for user contexts, and the CQ is one of %#x", eqn, uid)
	}
	return nil
}

// sendsRaw reports whether the context of a command may send raw frames.
func (u *users) sendsRaw(c *call) bool {
	uid := prm.InUID.U32(c.in)
	return uid == 0 || u.caps[uid]&prm.UCtxRawTX != 0
}

func (d *Device) createUser(c *call) error {
	have := prm.CapUCtx.U32(d.caps[prm.CapGeneral].cur)
	want := prm.UCtxCaps.U32(c.in)
	switch {
	case !d.cfg.Personality.DEVX:
		return refuse(prm.BadOp, "opcode", "the card has no user contexts")
	case want&^have != 0:
		return refuse(prm.BadParam, "uctx cap", "%#x, where %#x is possible", want, have)
	}
	n, err := take(d.users.caps, want, firstUser, lastUser, "user context")
	prm.UCtxID.Put(c.out, uint64(n))
	return err
}

func (d *Device) destroyUser(c *call) error {
	n := prm.UCtxID.U32(c.in)
	for o, owner := range d.users.owners {
		if owner == n {
			return refuse(prm.ResBusy, "user context", "%#x still has %s %#x", n, o.kind, o.n)
		}
	}
	return drop(d.users.caps, n, "user context")
}

// lagPorts is how many ports the adapter has in link aggregation, with the personality's LAG.
const lagPorts = 2

// inLAG reports whether the card is a function of an adapter with link aggregation.
func (d *Device) inLAG() bool { return d.cfg.Personality.LAG && d.cfg.Mode == RoCE }

// lagPort refuses a port of a LAG that there is not. 0 leaves the choice to the card.
func (d *Device) lagPort(what string, port uint8) error {
	if port != 0 && !d.inLAG() {
		return refuse(prm.BadParam, what+" lag_tx_port_affinity", "port %d, and there is no LAG", port)
	}
	if port > lagPorts {
		return refuse(prm.BadParam, what+" lag_tx_port_affinity", "port %d of %d", port, lagPorts)
	}
	return nil
}

// queryLAG says which port carries what is sent by each. Both ports are up.
func (d *Device) queryLAG(c *call) error {
	if !d.inLAG() {
		return refuse(prm.BadOp, "opcode", "there is no LAG")
	}
	prm.LAGState.Put(c.out, 1)
	prm.LAGRemap1.Put(c.out, 1)
	prm.LAGRemap2.Put(c.out, 2)
	return nil
}

// entropy checks what spreads the packets of a QP: the port of a LAG and the UDP source port. On a path that is
// not RoCE v2 the port is ignored, as it is by every transition.
func (d *Device) entropy(t engine.Transition, opt engine.OptParam, a *engine.QPAttr) error {
	if t == engine.Rst2Init || opt&engine.OptLagAffinity != 0 {
		if err := d.lagPort("QP", a.LAGPort); err != nil {
			return err
		}
	}
	if opt&engine.OptUDPSport != 0 {
		if d.cfg.Mode != RoCE {
			return refuse(prm.BadParam, "opt_param_mask_95_32", "a UDP source port on InfiniBand")
		}
		if a.Primary.UDPSport < minSport {
			return refuse(prm.BadParam, "QP udp_sport", "%#x: at least %#x", a.Primary.UDPSport, minSport)
		}
	}
	return nil
}
