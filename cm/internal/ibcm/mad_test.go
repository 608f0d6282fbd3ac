package ibcm

import (
	"bytes"
	"encoding/hex"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// at is a part of a MAD: bytes in hexadecimal at an offset behind the header.
type at struct {
	offset int
	hex    string
}

// golden are messages and their bytes, written by hand from the tables of the standard (IBTA 12.6
// and 12.11). Offsets of the table are behind the header.
var golden = []struct {
	message  Message
	attr     byte
	modifier string
	parts    []at
}{
	{&REQ{
		CommID: 0x01020304, Service: 0x0000000001061234, GUID: 0x1122334455667788, QKey: 0x01234567, QPN: 0xabcdef,
		ResponderResources: 5, InitiatorDepth: 6, RemoteTimeout: 20, Transport: TransportUC, FlowControl: true, PSN: 0x112233,
		LocalTimeout: 21, RetryCount: 7, PKey: 0xffff, MTU: 5, RNRRetryCount: 6, MaxRetries: 15, SRQ: true, ExtTransport: 1,
		Primary: PathInfo{
			LocalLID: 0xffff, RemoteLID: 0xfffe, LocalGID: gid(0x10), RemoteGID: gid(0x20), FlowLabel: 0x12345, Rate: 0x2a,
			TrafficClass: 0x68, HopLimit: 64, SL: 9, SubnetLocal: true, AckTimeout: 19,
		},
		Alternate: PathInfo{
			LocalLID: 1, RemoteLID: 2, LocalGID: gid(0x30), RemoteGID: gid(0x40), FlowLabel: 0xfffff, Rate: 1,
			TrafficClass: 2, HopLimit: 3, SL: 15, AckTimeout: 31,
		},
		ECE: ECE{0x0a0b0c, 0xc0ffee01}, Private: [REQPrivateSize]byte{0: 0xf1, 91: 0xf2},
	}, 0x10, "c0ffee01", []at{
		{0, "01020304"}, {5, "0a0b0c"}, {8, "0000000001061234"}, {16, "1122334455667788"}, {28, "01234567"}, {32, "abcdef"},
		{35, "05"}, {39, "06"}, {43, "a3"}, {44, "112233"}, {47, "af"}, {48, "ffff"}, {50, "56"}, {51, "f9"},
		{52, "ffff"}, {54, "fffe"}, {56, "10000000000000000000000000000010"}, {72, "20000000000000000000000000000020"},
		{88, "1234502a"}, {92, "68"}, {93, "40"}, {94, "98"}, {95, "98"},
		{96, "0001"}, {98, "0002"}, {100, "30000000000000000000000000000030"}, {116, "40000000000000000000000000000040"},
		{132, "fffff001"}, {136, "02"}, {137, "03"}, {138, "f0"}, {139, "f8"}, {140, "f1"}, {231, "f2"},
	}},
	{&REP{
		CommID: 0x01020304, RemoteCommID: 0x05060708, QKey: 0x01234567, QPN: 0xabcdef, PSN: 0x112233, ResponderResources: 5,
		InitiatorDepth: 6, AckDelay: 15, Failover: 2, FlowControl: true, RNRRetryCount: 5, SRQ: true, GUID: 0x1122334455667788,
		ECE: ECE{0x0a0b0c, 0xc0ffee01}, Private: [REPPrivateSize]byte{0: 0xf1, 195: 0xf2},
	}, 0x13, "c0ffee01", []at{
		{0, "01020304"}, {4, "05060708"}, {8, "01234567"}, {12, "abcdef"}, {15, "0a"}, {19, "0b"}, {20, "112233"}, {23, "0c"},
		{24, "05"}, {25, "06"}, {26, "7d"}, {27, "b0"}, {28, "1122334455667788"}, {36, "f1"}, {231, "f2"},
	}},
	{&RTU{IDs: IDs{0x01020304, 0x05060708}, Private: [RTUPrivateSize]byte{0: 0xf1, 223: 0xf2}}, 0x14, "00000000", []at{
		{0, "01020304"}, {4, "05060708"}, {8, "f1"}, {231, "f2"},
	}},
	{&DREQ{IDs: IDs{0x01020304, 0x05060708}, QPN: 0xabcdef, Private: [DREQPrivateSize]byte{0: 0xf1, 219: 0xf2}}, 0x15, "00000000", []at{
		{0, "01020304"}, {4, "05060708"}, {8, "abcdef"}, {12, "f1"}, {231, "f2"},
	}},
	{&DREP{IDs: IDs{0x01020304, 0x05060708}, Private: [DREPPrivateSize]byte{0: 0xf1, 223: 0xf2}}, 0x16, "00000000", []at{
		{0, "01020304"}, {4, "05060708"}, {8, "f1"}, {231, "f2"},
	}},
	{&REJ{
		IDs: IDs{0x01020304, 0x05060708}, Rejected: SubjectOther, InfoLength: 72, Reason: 0x011c,
		Info: [InfoSize]byte{0: 0xe1, 71: 0xe2}, Private: [REJPrivateSize]byte{0: 0xf1, 147: 0xf2},
	}, 0x12, "00000000", []at{
		{0, "01020304"}, {4, "05060708"}, {8, "80"}, {9, "90"}, {10, "011c"}, {12, "e1"}, {83, "e2"}, {84, "f1"}, {231, "f2"},
	}},
	{&MRA{IDs: IDs{0x01020304, 0x05060708}, Acknowledged: SubjectREP, Timeout: 24, Private: [MRAPrivateSize]byte{0: 0xf1, 221: 0xf2}}, 0x11, "00000000", []at{
		{0, "01020304"}, {4, "05060708"}, {8, "40"}, {9, "c0"}, {10, "f1"}, {231, "f2"},
	}},
	{&SIDRREQ{RequestID: 0x01020304, PKey: 0x8001, Service: 0x0000000001111234, Private: [SIDRREQPrivateSize]byte{0: 0xf1, 215: 0xf2}}, 0x17, "00000000", []at{
		{0, "01020304"}, {4, "8001"}, {8, "0000000001111234"}, {16, "f1"}, {231, "f2"},
	}},
	{&SIDRREP{
		RequestID: 0x01020304, Status: SIDRReject, InfoLength: 72, QPN: 0xabcdef, Service: 0x0000000001111234, QKey: 0x01234567,
		ECE: ECE{0x0b0c, 0xc0ffee01}, Info: [InfoSize]byte{0: 0xe1, 71: 0xe2}, Private: [SIDRREPPrivateSize]byte{0: 0xf1, 135: 0xf2},
	}, 0x18, "c0ffee01", []at{
		{0, "01020304"}, {4, "02"}, {5, "48"}, {7, "0b"}, {8, "abcdef"}, {11, "0c"}, {12, "0000000001111234"}, {20, "01234567"},
		{24, "e1"}, {95, "e2"}, {96, "f1"}, {231, "f2"},
	}},
}

// gid returns a GID with the first and the last byte set.
func gid(b byte) [16]byte { return [16]byte{0: b, 15: b} }

func unhex(t *testing.T, s string) []byte {
	t.Helper()
	b, err := hex.DecodeString(s)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func TestGoldenBytes(t *testing.T) {
	for _, g := range golden {
		want := make([]byte, MADSize)
		copy(want, unhex(t, "01070203"+"00000000"+"a1a2a3a4a5a6a7a8"+"00"))
		want[17] = g.attr
		copy(want[20:], unhex(t, g.modifier))
		for _, p := range g.parts {
			copy(want[24+p.offset:], unhex(t, p.hex))
		}
		var got [MADSize]byte
		Encode(&got, 0xa1a2a3a4a5a6a7a8, g.message)
		if !bytes.Equal(got[:], want) {
			t.Errorf("%T (-want +got):\n%s", g.message, cmp.Diff(hex.Dump(want), hex.Dump(got[:])))
		}
		tid, back, err := Decode(want)
		if err != nil || tid != 0xa1a2a3a4a5a6a7a8 {
			t.Errorf("%T: transaction ID %#x, %v", g.message, tid, err)
			continue
		}
		if diff := cmp.Diff(g.message, back); diff != "" {
			t.Errorf("%T decoded (-want +got):\n%s", g.message, diff)
		}
	}
}

func TestDecodeErrors(t *testing.T) {
	var mad [MADSize]byte
	Encode(&mad, 1, &RTU{})
	if _, _, err := Decode(mad[:]); err != nil {
		t.Fatal(err)
	}
	for offset, text := range map[int]string{0: "not a message", 1: "not a message", 2: "not a message", 3: "not a message", 16: "unknown", 17: "unknown"} {
		bad := mad
		bad[offset] ^= 0x40
		if _, _, err := Decode(bad[:]); err == nil || !strings.Contains(err.Error(), text) {
			t.Errorf("byte %d changed: %v, want %q", offset, err, text)
		}
	}
	for _, n := range []int{0, 24, 255, 257} {
		if _, _, err := Decode(make([]byte, n)); err != errSize {
			t.Errorf("%d bytes: %v", n, err)
		}
	}
}

// FuzzDecode: no MAD makes Decode panic, and a decoded message has the same bytes again, except for
// reserved bits.
func FuzzDecode(f *testing.F) {
	for _, g := range golden {
		var mad [MADSize]byte
		Encode(&mad, 7, g.message)
		f.Add(mad[:])
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		tid, m, err := Decode(b)
		if err != nil {
			return
		}
		var once, twice [MADSize]byte
		Encode(&once, tid, m)
		again, m2, err := Decode(once[:])
		if err != nil || again != tid {
			t.Fatalf("transaction ID %#x becomes %#x, %v", tid, again, err)
		}
		if diff := cmp.Diff(m, m2); diff != "" {
			t.Fatalf("decoded again (-first +second):\n%s", diff)
		}
		if Encode(&twice, tid, m2); once != twice {
			t.Error("encoded twice, the bytes differ")
		}
	})
}
