package perf

import (
	"fmt"
	"slices"
	"strings"

	"github.com/goverbs/goverbs/tools/verbs/internal/peertext"
	"github.com/goverbs/goverbs/uverbs"
)

// validateOptions checks the options of both sides against the operation and each other.
func (c *Config) validateOptions() error {
	kinds := []string{""}
	if c.Op == Atomic {
		kinds = []string{Add, Swap}
	}
	switch {
	case c.Op != Atomic && c.AtomicType != "":
		return fmt.Errorf("--atomic-type is for atomics, and this is %s", c.Name())
	case !slices.Contains(kinds, c.AtomicType):
		return field("atomic-type", peertext.Quote(c.AtomicType), "%s", strings.Join(kinds, ", "))
	case c.Imm && c.Op != Send && c.Op != Write:
		return fmt.Errorf("--imm is for SEND and WRITE, and this is %s", c.Name())
	case c.SRQ && !c.messages():
		return fmt.Errorf("--use-srq is for messages that take receives, and %s has none without --imm", c.Name())
	}
	return nil
}

// fitOptions refuses options that a device does not have.
func (c *Config) fitOptions(l Limits) error {
	switch {
	case c.Imm && l.IWARP:
		return fmt.Errorf("--imm: %s: %w", l.Device, &uverbs.FeatureError{Feature: "immediate data", Driver: l.Driver})
	case c.SRQ && l.IWARP:
		return fmt.Errorf("--use-srq: %s is of iWARP, where each queue pair counts its own receives", l.Device)
	case c.SRQ && l.MaxSRQWR == 0:
		return fmt.Errorf("--use-srq: %s: %w", l.Device, &uverbs.FeatureError{Feature: "SRQ", Driver: l.Driver})
	case c.SRQ && c.QPs*c.RecvDepth > l.MaxSRQWR:
		return fmt.Errorf("--qps times --recv-depth is %d, allowed with --use-srq: up to %d, max_srq_wr of %s", c.QPs*c.RecvDepth, l.MaxSRQWR, l.Device)
	}
	return nil
}

// immOf is the immediate data of what a queue pair sends.
func immOf(qp int) uint32 { return uint32(qp) + 1 }

// errKind refuses a completion of a receive that is not of the messages of the test.
func (e *End) errKind(wc *uverbs.WC) error {
	name := map[uverbs.WCOpcode]string{uverbs.WCRecv: "SEND", uverbs.WCRecvRDMAWrite: "WRITE"}
	want := name[e.takes]
	if e.flags != 0 {
		want += " with immediate data"
	}
	got := name[wc.Opcode]
	if wc.Flags&uverbs.WCWithImm != 0 {
		got += " with immediate data"
	}
	return refusef("a %s has taken a receive, expected a %s", got, want)
}

// checkMessage compares a message that has come with what it must be. With an SRQ its receive may have been posted
// for another queue pair.
func (e *End) checkMessage(wc *uverbs.WC, qp, slot, size int) error {
	got := e.MR.Bytes()[e.recvAt(qp, slot, size):][:size]
	if e.srq != nil {
		qp = 0
		for qp < len(e.flows)-1 && e.receiver(qp).QPN() != wc.QPN {
			qp++
		}
	}
	if e.Config.Imm && wc.Imm != immOf(qp) {
		return refusef("wrong immediate data in a message of queue pair %d: %d, expected %d", qp, wc.Imm, immOf(qp))
	}
	if e.Config.Op == Write && e.Config.Metric == BW { // at the end, as several go to one place
		return nil
	}
	if err := e.mismatch("a message", qp, got); err != nil {
		return err
	}
	clear(got)
	return nil
}

// counterAfter is what an atomic finds after n others at the same place.
func (c *Config) counterAfter(n int) uint64 {
	if c.AtomicType == Swap {
		return uint64(min(n, 1))
	}
	return uint64(n)
}

// fit refuses settings that a device does not have, before anything is made.
func (l Local) fit(dev *uverbs.Device) error {
	if n := dev.Attr().CompVectors; l.Vector != 0 && l.Vector >= n {
		return field("vector", l.Vector, "0 to %d, the completion vectors of %s", n-1, dev.Name())
	}
	return nil
}

// Partition has a config take the partition with the index that the user chose, if there is one.
func (l Local) Partition(dev *uverbs.Device, port uint8, c *Config) error {
	if l.PKeyIndex == nil {
		return nil
	}
	const member = 0x8000 // the bit of full members
	attr, err := dev.Port(port)
	if err != nil {
		return err
	}
	index := *l.PKeyIndex
	if index >= attr.PKeyTableLen {
		return field("pkey-index", index, "0 to %d, of port %d of %s", attr.PKeyTableLen-1, port, dev.Name())
	}
	if c.PKey, err = dev.PKey(port, index); err != nil {
		return err
	}
	if c.PKey&^member == 0 {
		return field("pkey-index", index, "one that has a key; this entry of port %d of %s is not in use", port, dev.Name())
	}
	// A queue pair gets the first key of a full member, or else the first one.
	for i := range attr.PKeyTableLen {
		key, err := dev.PKey(port, i)
		if err != nil {
			return err
		}
		if i != index && (key^c.PKey)&^member == 0 && (key&member > c.PKey&member || i < index && key == c.PKey) {
			return field("pkey-index", index, "%d, which has key 0x%04x of the same partition", i, key)
		}
	}
	return nil
}
