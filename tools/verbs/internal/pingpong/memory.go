package pingpong

import (
	"errors"
	"fmt"
	"reflect"

	"github.com/goverbs/goverbs/tools/internal/objects"
	"github.com/goverbs/goverbs/tools/verbs/internal/command"
	"github.com/goverbs/goverbs/tools/verbs/internal/perf"
	"github.com/goverbs/goverbs/uverbs"
)

// memory is where the messages are.
type memory struct {
	mr   *uverbs.MR
	at   int        // the offset of the messages in mr
	data []byte     // the messages; with --dm a copy of what this side has written
	dm   *uverbs.DM // or nil
}

// checkMemory refuses options of the memory that exclude each other.
func (o *Options) checkMemory() error {
	switch {
	case o.DM && o.onDemand():
		return command.Usagef("--dm is set, allowed: without --odp and --iodp, as the pages of a device's memory are not on demand")
	case o.Prefetch && !o.onDemand():
		return command.Usagef("--prefetch is set, allowed: only with --odp or --iodp")
	}
	return nil
}

// onDemand reports whether the memory is registered for on-demand paging.
func (o *Options) onDemand() bool { return o.ODP || o.ImplicitODP }

// checkCaps refuses memory and time stamps that a device does not support.
func (o *Options) checkCaps(dev *uverbs.Device) error {
	// IB_UVERBS_ODP_SUPPORT and IB_UVERBS_ODP_SUPPORT_IMPLICIT, ib_user_ioctl_verbs.h
	const odp, implicit = 1 << 0, 1 << 1
	attr, need := dev.Attr(), uverbs.ODPSend|uverbs.ODPRecv
	caps := attr.ODPCapsRC
	switch o.Type {
	case perf.UC:
		caps = attr.ODPCapsUC
	case perf.UD:
		caps = attr.ODPCapsUD
	case TypeSRQ:
		need = uverbs.ODPSend | uverbs.ODPSRQRecv
	case TypeXRC:
		caps, need = attr.ODPCapsXRC, uverbs.ODPSend|uverbs.ODPSRQRecv
	}
	feature := ""
	switch {
	case o.onDemand() && (attr.ODPGeneralCaps&odp == 0 || caps&need != need):
		feature = "on-demand paging (--odp, --iodp) with --type " + o.Type
	case o.ImplicitODP && attr.ODPGeneralCaps&implicit == 0:
		feature = "implicit on-demand paging (--iodp)"
	case o.DM && attr.MaxDMSize == 0:
		feature = "memory of the device (--dm)"
	case o.Timestamps && attr.TimestampMask == 0:
		feature = "time stamps of completions (--ts)"
	case o.DM && uint64(o.Size) > attr.MaxDMSize:
		return fmt.Errorf("--size is %d, allowed: 1 to %d, the size of the memory of %s, with --dm", o.Size, attr.MaxDMSize, dev.Name())
	}
	if feature == "" {
		return nil
	}
	return &uverbs.FeatureError{Feature: feature, Driver: dev.Info().Driver, Err: errors.New(dev.Name())}
}

// openMemory registers size bytes of memory for the messages.
func (e *side) openMemory(size int) {
	e.memory = memory{}
	s, access := &e.opened, uverbs.AccessLocalWrite
	if e.o.onDemand() {
		access |= uverbs.AccessOnDemand
	}
	switch {
	case e.o.DM:
		const word = 4 // the unit of DM.WriteAt, in bytes
		e.data = make([]byte, (size+word-1)&^(word-1))
		e.dm = objects.Open(s, func() (*uverbs.DM, error) { return e.dev.AllocDM(len(e.data), uverbs.DMOptions{}) })
		e.mr = objects.Open(s, func() (*uverbs.MR, error) { return e.pd.RegDM(e.dm, 0, len(e.data), access) })
	case e.o.ImplicitODP:
		buf := objects.Open(s, func() (*uverbs.Buffer, error) { return uverbs.AllocBuffer(size, uverbs.BufferOptions{}) })
		e.mr = objects.Open(s, func() (*uverbs.MR, error) { return e.pd.RegImplicit(access) })
		if s.Err() == nil {
			e.data = buf.Bytes()
			e.at = int(reflect.ValueOf(e.data).Pointer())
		}
	default:
		if e.mr = s.MR(e.pd, size, access); e.mr != nil {
			e.data = e.mr.Bytes()
		}
	}
	if e.o.Prefetch {
		s.Do(func() error {
			return e.pd.AdviseMR(uverbs.AdvicePrefetchWrite, []uverbs.SGE{e.mr.SGE(e.at, size)}, uverbs.AdviseOptions{Flush: true})
		})
	}
}

// pageSize is the distance of the bytes that --verify looks at.
const pageSize = 4096

// fill writes the same data as ibv_rc_pingpong. A client puts a zero at the start of each page,
// which a server checks with --verify.
func (e *side) fill() error {
	b := e.data[e.header:]
	for i := range b {
		b[i] = 0x7b
		if e.client && i%pageSize == 0 {
			b[i] = 0
		}
	}
	if e.dm == nil {
		return nil
	}
	_, err := e.dm.WriteAt(e.data, 0)
	return err
}

// validate compares the first byte of each page with the one that the client wrote.
func (e *side) validate() error {
	for i := 0; i < e.o.Size; i += pageSize {
		at := e.header + i
		if e.dm != nil {
			if _, err := e.dm.ReadAt(e.data[at:][:4], int64(at)); err != nil {
				return err
			}
		}
		if b := e.data[at]; b != 0 {
			return fmt.Errorf("message %d: invalid data in page %d: byte %#02x, expected 0x00", e.received, i/pageSize, b)
		}
	}
	return nil
}

// clock has the times between the completions of receives, by the device's clock.
type clock struct {
	Max     uint64  `json:"max_cycles"`
	Min     uint64  `json:"min_cycles"`
	Average float64 `json:"average_cycles"`
	KHz     uint64  `json:"khz"` // the frequency of the clock

	last  uint64
	count int // receives so far
}

// add adds the completion of a receive at a time of a clock, whose valid bits are in mask.
func (c *clock) add(at, mask uint64) {
	if cycles := (at - c.last) & mask; c.count > 0 {
		c.Max = max(c.Max, cycles)
		if c.count == 1 || cycles < c.Min {
			c.Min = cycles
		}
		c.Average += (float64(cycles) - c.Average) / float64(c.count)
	}
	c.last = at
	c.count++
}
