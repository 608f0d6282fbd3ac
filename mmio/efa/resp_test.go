//go:build amd64 || arm64

package efa

import (
	"encoding/hex"
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// words returns bytes in hex, with spaces between fields.
func words(s string) []byte {
	b, err := hex.DecodeString(strings.ReplaceAll(s, " ", ""))
	if err != nil {
		panic(err)
	}
	return b
}

// Responses as rdma/efa-abi.h has them, typed from there and on purpose not made with the generated package.
var (
	contextResp = words("00000000 03000000 0200 2000 00000100 0400 1000 5000 0000")
	deviceResp  = words("00000000 00040000 00100000 0200 0300 00000040 63000000")
	cqResp      = words("01000000 00000000 0010000000000000 0010000000000000 0700 0000 10080000 0020000000000000")
	qpResp      = words("00000000 04000000 08000000 c0000000 0030000000000000 0010000000000000 0040000000000000 0050000000000000 0060000000000000 0100 0000 00000000")
)

func TestResponses(t *testing.T) {
	c, err := DecodeContext(contextResp)
	if diff := cmp.Diff(Context{SubCQs: 2, Inline: 32, InlineEx: 80, MaxLLQ: 65536, MaxBatch: 4, MinSends: 16}, c); diff != "" || err != nil || c.MaxInline() != 80 {
		t.Errorf("context, %v (-want +got):\n%s", err, diff)
	}
	d, err := DecodeDevice(deviceResp)
	if diff := cmp.Diff(Device{MaxSends: 1024, MaxRecvs: 4096, MaxSendSGE: 2, MaxRecvSGE: 3, MaxRDMASize: 1 << 30, Caps: CapRead | CapRNRRetry | CapWrite | CapUnsolicitedWrite}, d); diff != "" || err != nil {
		t.Errorf("device, %v (-want +got):\n%s", err, diff)
	}
	cq, err := DecodeCQ(cqResp, 2, 64, 4096)
	if diff := cmp.Diff(CQResponse{Mapping{0x1000, 4096}, Mapping{0x2000, 4096}, 0x810}, cq); diff != "" || err != nil {
		t.Errorf("CQ, %v (-want +got):\n%s", err, diff)
	}
	send, recv := SendSize{Depth: 64, Width: 64}, RecvSize{MaxWR: 64, MaxSGE: 1, Descriptors: 64}
	qp, err := DecodeQP(qpResp, send, recv, 4096)
	want := QPResponse{
		Send: Mapping{0x6000, 8192}, SendOffset: 0xc0, SendDoorbell: Mapping{0x5000, 4096}, SendBell: 8,
		Recv: Mapping{0x3000, 4096}, RecvDoorbell: Mapping{0x4000, 4096}, RecvBell: 4,
	}
	if diff := cmp.Diff(want, qp); diff != "" || err != nil {
		t.Errorf("QP, %v (-want +got):\n%s", err, diff)
	}
	want.Recv, want.RecvDoorbell, want.RecvBell = Mapping{}, Mapping{}, 0
	if qp, err = DecodeQP(qpResp, send, RecvSize{}, 4096); err != nil || qp != want {
		t.Errorf("QP without receives: %+v, %v", qp, err)
	}
	noBell := append([]byte(nil), cqResp...)
	noBell[0] = 0
	if cq, err := DecodeCQ(noBell, 2, 64, 4096); err != nil || cq.Doorbell != (Mapping{}) {
		t.Errorf("CQ without a doorbell: %+v, %v", cq, err)
	}
	if n, err := DecodeAH(words("00000000 3412 0000")); err != nil || n != 0x1234 {
		t.Errorf("AH %#x, %v", n, err)
	}

	changed := func(b []byte, at int, v byte) []byte {
		b = append([]byte(nil), b...)
		b[at] = v
		return b
	}
	errOf := func(_ any, err error) error { return err }
	for name, err := range map[string]error{
		"short context":       errOf(DecodeContext(contextResp[:23])),
		"no AH numbers":       errOf(DecodeContext(changed(contextResp, 4, 1))),
		"no rings":            errOf(DecodeContext(changed(contextResp, 8, 0))),
		"many rings":          errOf(DecodeContext(changed(contextResp, 9, 1))),
		"short device":        errOf(DecodeDevice(deviceResp[:23])),
		"short CQ":            errOf(DecodeCQ(cqResp[:39], 2, 64, 4096)),
		"small CQ":            errOf(DecodeCQ(cqResp, 2, 128, 4096)),
		"huge CQ":             errOf(DecodeCQ(changed(cqResp, 23, 1), 2, 64, 4096)),
		"CQ's doorbell":       errOf(DecodeCQ(changed(cqResp, 29, 0x10), 2, 64, 4096)),
		"CQ's odd doorbell":   errOf(DecodeCQ(changed(cqResp, 28, 2), 2, 64, 4096)),
		"short QP":            errOf(DecodeQP(qpResp[:63], send, recv, 4096)),
		"LLQ's odd offset":    errOf(DecodeQP(changed(qpResp, 12, 8), send, recv, 4096)),
		"LLQ's offset":        errOf(DecodeQP(changed(qpResp, 13, 0x10), send, recv, 4096)),
		"small receive ring":  errOf(DecodeQP(changed(qpResp, 25, 0), send, recv, 4096)),
		"send doorbell":       errOf(DecodeQP(changed(qpResp, 11, 1), send, recv, 4096)),
		"receive doorbell":    errOf(DecodeQP(changed(qpResp, 7, 1), send, recv, 4096)),
		"short AH":            errOf(DecodeAH(nil)),
		"no queue of 3 bytes": errOf(CompSize(0)),
		"no queue so large":   errOf(CompSize(maxDepth + 1)),
	} {
		if err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}

func TestRequests(t *testing.T) {
	for name, tc := range map[string]struct {
		got  []byte
		want string
	}{
		"context": {ContextRequest(), "03000000 00000000"},
		"CQ":      {(&CQRequest{SubCQs: 2, Notify: true}).Encode(), "00000000 20000000 0200 01 0000000000"},
		"QP": {
			(&QPRequest{Send: SendSize{Depth: 16, Width: 128}, Recv: RecvSize{MaxWR: 8, MaxSGE: 2, Descriptors: 16}, SL: 5, Unsolicited: true}).Encode(),
			"00000000 00010000 00080000 00000000 0100 05 0000000000",
		},
		"simple QP": {(&QPRequest{Send: SendSize{Depth: 1, Width: 64}}).Encode(), "00000000 00000000 40000000 00000000 0000 00 0000000000"},
	} {
		if diff := cmp.Diff(words(tc.want), tc.got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
}

func TestSizes(t *testing.T) {
	plain := Context{Inline: 32, InlineEx: 80, MaxLLQ: 65536}
	batch := Context{Inline: 32, MaxLLQ: 65536, MaxBatch: 4, MinSends: 16}
	whole := Context{Inline: 32, MaxLLQ: 65536, MinSends: 16}
	short := Context{Inline: 32, InlineEx: 80, MaxLLQ: 65536, MaxBatch: 1}
	odd := Context{Inline: 20, MaxLLQ: 100 * 64}
	d := Device{MaxSends: 1024, MaxRecvs: 4096, MaxSendSGE: 2, MaxRecvSGE: 3}
	for _, tc := range []struct {
		c                     Context
		maxWR, maxSGE, inline int
		write                 bool
		want                  SendSize
		wrong                 string // in the error
	}{
		{c: plain, maxWR: 100, maxSGE: 2, inline: 32, want: SendSize{Depth: 128, Width: 64, MaxSGE: 2, MaxInline: 32}},
		{c: plain, maxWR: 0, want: SendSize{Depth: 1, Width: 64}},
		{c: plain, maxWR: 512, maxSGE: 1, inline: 33, want: SendSize{Depth: 512, Width: 128, MaxSGE: 1, MaxInline: 33}},
		{c: plain, maxWR: 513, maxSGE: 1, inline: 33, wrong: "sends: got 513, must be from 0 to 512"},
		{c: plain, maxWR: 1024, write: true, wrong: "sends: got 1024, must be from 0 to 512"},
		{c: plain, maxWR: 1, inline: 1, write: true, want: SendSize{Depth: 1, Width: 128, MaxInline: 1, InlineWrite: true}},
		{c: plain, maxWR: 1, inline: 81, wrong: "inline data of a send: got 81, must be from 0 to 80"},
		{c: plain, maxWR: 1, maxSGE: 3, wrong: "scatter/gather entries of a send: got 3, must be from 0 to 2"},
		{c: plain, maxWR: -1, wrong: "sends: got -1"},
		{c: batch, maxWR: 1, want: SendSize{Depth: 16, Width: 64, Batch: 4}},
		{c: batch, maxWR: 1, write: true, wrong: "the device has no requests of 128 bytes"},
		{c: whole, maxWR: 20, want: SendSize{Depth: 32, Width: 64, Batch: 31}},
		{c: Context{MaxLLQ: 65536, MinSends: 1}, maxWR: 1, want: SendSize{Depth: 2, Width: 64, Batch: 1}},
		{c: short, maxWR: 1, inline: 80, wrong: "the device accepts 64 bytes at a time"},
		{c: odd, maxWR: 64, inline: 20, want: SendSize{Depth: 64, Width: 64, MaxInline: 20}},
		{c: odd, maxWR: 65, wrong: "must be from 0 to 64"},
		{c: odd, inline: 21, wrong: "must be from 0 to 20"},
		{c: Context{MaxLLQ: 64, MinSends: 2}, maxWR: 1, wrong: "the device wants at least 2 requests, and has memory for 1"},
		{c: Context{}, maxWR: 1, wrong: "must be from 0 to 0"},
	} {
		got, err := tc.c.SendSize(&d, tc.maxWR, tc.maxSGE, tc.inline, tc.write)
		if tc.wrong != "" {
			if err == nil || !errors.Is(err, ErrSize) || !strings.Contains(err.Error(), tc.wrong) {
				t.Errorf("%d sends of %+v: %v, want %q", tc.maxWR, tc.c, err, tc.wrong)
			}
		} else if err != nil || got != tc.want {
			t.Errorf("%d sends of %+v: %+v, %v, want %+v", tc.maxWR, tc.c, got, err, tc.want)
		}
	}
	for _, tc := range []struct {
		maxWR, maxSGE int
		want          RecvSize
		wrong         string
	}{
		{0, 5, RecvSize{}, ""},
		{100, 1, RecvSize{MaxWR: 128, MaxSGE: 1, Descriptors: 128}, ""},
		{8, 3, RecvSize{MaxWR: 10, MaxSGE: 3, Descriptors: 32}, ""},
		{8, 0, RecvSize{MaxWR: 8, MaxSGE: 1, Descriptors: 8}, ""},
		{4096, 1, RecvSize{MaxWR: 4096, MaxSGE: 1, Descriptors: 4096}, ""},
		{1366, 3, RecvSize{}, "receives with 3 entries: got 1366, must be from 0 to 1365"},
		{-1, 3, RecvSize{}, "got -1, must be"},
		{1, 4, RecvSize{}, "scatter/gather entries of a receive: got 4, must be from 0 to 3"},
	} {
		got, err := d.RecvSize(tc.maxWR, tc.maxSGE)
		if (err == nil) != (tc.wrong == "") || got != tc.want || err != nil && (!errors.Is(err, ErrSize) || !strings.Contains(err.Error(), tc.wrong)) {
			t.Errorf("%d receives of %d entries: %+v, %v, want %+v %q", tc.maxWR, tc.maxSGE, got, err, tc.want, tc.wrong)
		}
	}
	d.MaxRecvs = 100 // of which a ring has 64
	if s, err := d.RecvSize(65, 1); err == nil {
		t.Errorf("65 receives of 64: %+v", s)
	}
	if n, err := CompSize(33); n != 64 || err != nil {
		t.Errorf("33 completions: %d, %v", n, err)
	}
}
