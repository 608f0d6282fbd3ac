package uverbs

import (
	"encoding/binary"
	"io"
	"slices"
	"testing"
)

// FuzzEvents has the kernel tell any asynchronous events (struct ib_uverbs_async_event_desc) and
// completion events (struct ib_uverbs_comp_event_desc). Each is about an object whose handle it has
// and whose kind it fits, or is dropped; one that is cut off is an error.
func FuzzEvents(f *testing.F) {
	event := func(typ EventType, element uint64) []byte {
		return binary.NativeEndian.AppendUint64(binary.NativeEndian.AppendUint64(nil, element), uint64(typ))
	}
	f.Add(event(EventCQErr, 1), binary.NativeEndian.AppendUint64(nil, 1))
	f.Add(slices.Concat(event(EventQPFatal, 2), event(EventSRQErr, 3), event(EventWQFatal, 4), event(EventPortErr, 1)), []byte{1})
	f.Add(slices.Concat(event(EventDeviceFatal, 0), event(1<<31, 1<<63), event(EventQPFatal, 1)), make([]byte, 20))
	f.Add(event(EventGIDChange, 257)[:15], []byte{})
	f.Fuzz(func(t *testing.T, events, comps []byte) {
		events, comps = events[:min(len(events), 4096)], comps[:min(len(comps), 4096)] // a pipe takes as much
		d, k := fakeDevice(t, pathAuto)
		ch := value(d.CreateCompChannel())(t)
		cq := value(d.CreateCQ(CQOptions{Size: 1, Channel: ch}))(t)
		qp, srq, wq := &QP{}, &SRQ{}, &WQ{}
		objects := map[uint64]any{cq.cookie: cq, d.targets.add(qp): qp, d.targets.add(srq): srq, d.targets.add(wq): wq}

		_, err := k.async.Write(events)
		must(t, err, k.async.Close())
		for ; len(events) >= 16; events = events[16:] {
			element, typ := binary.NativeEndian.Uint64(events), EventType(binary.NativeEndian.Uint32(events[8:]))
			got, ok, err := d.readEvent()
			if err != nil || got.Type != typ || got.String() == "" {
				t.Fatalf("event %d is %+v, %v", typ, got, err)
			}
			about := slices.DeleteFunc([]any{got.CQ, got.QP, got.SRQ, got.WQ}, func(o any) bool { return o != objects[element] })
			named := got.CQ != nil || got.QP != nil || got.SRQ != nil || got.WQ != nil
			switch {
			case named && (len(about) != 1 || !ok && typ != EventCQErr || got.Port != 0): // which comes once in a while
				t.Errorf("event %s of handle %d is %+v, %v", typ, element, got, ok)
			case got.Port != 0 && got.Port != uint8(element):
				t.Errorf("event %s of port %d is of port %d", typ, element, got.Port)
			case !named && !ok && (typ > EventWQFatal || objects[element] != nil && typ == EventCQErr && objects[element] == any(cq)):
				t.Errorf("event %s of handle %d is dropped", typ, element)
			}
		}
		checkCut(t, len(events), func() error { _, _, err := d.readEvent(); return err }())

		_, err = k.events.Write(comps)
		must(t, err, k.events.Close())
		for ; len(comps) >= eventSize; comps = comps[eventSize:] {
			handle := binary.NativeEndian.Uint64(comps)
			if got, err := ch.read(); err != nil || got != nil && (got != cq || handle != cq.cookie) || got == nil && handle == cq.cookie {
				t.Errorf("completion event of handle %d is of CQ %p, %v; the CQ %p has %d", handle, got, err, cq, cq.cookie)
			}
		}
		checkCut(t, len(comps), func() error { _, err := ch.read(); return err }())
		must(t, cq.Close(), ch.Close())
		k.async, k.events = nil, nil
	})
}

// checkCut checks the error of a read where only the beginning of an event is left, or nothing.
func checkCut(t *testing.T, left int, err error) {
	t.Helper()
	want := io.EOF
	if left > 0 {
		want = io.ErrUnexpectedEOF
	}
	errorIs(t, err, want, "with %d bytes of an event left", left)
}
