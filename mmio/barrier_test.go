//go:build amd64 || arm64

package mmio

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"testing"
	"unsafe"

	"github.com/google/go-cmp/cmp"
)

// anonymous returns n bytes of mapped memory, which the race detector does not
// watch: these tests order their accesses by barriers that it does not know.
func anonymous(tb testing.TB, n int) []byte {
	tb.Helper()
	r, err := MapAnonymous(n, false)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { r.Close() })
	return r.Bytes()
}

func TestStore64(t *testing.T) {
	const size = 4096
	mem := anonymous(t, size)
	for off := 0; off < size; off += 8 {
		for i := range mem {
			mem[i] = 0xee
		}
		want := bytes.Clone(mem)
		for i := range 8 {
			want[off+i] = byte(i + 1)
		}
		var v uint64
		copy(unsafe.Slice((*byte)(unsafe.Pointer(&v)), 8), want[off:])
		for _, store := range []func(*uint64, uint64){Store64, StoreWC} {
			for i := range 8 {
				mem[off+i] = 0xdd
			}
			store((*uint64)(unsafe.Pointer(&mem[off])), v)
			if !bytes.Equal(want, mem) {
				t.Fatalf("store to offset %d (-want +got):\n%s", off, cmp.Diff(want, mem))
			}
		}
	}
}

func TestStore32(t *testing.T) {
	mem := anonymous(t, 4096)
	for off := 0; off < len(mem); off += 4 {
		for i := range mem {
			mem[i] = 0xee
		}
		want := bytes.Clone(mem)
		binary.NativeEndian.PutUint32(want[off:], 0x01020304)
		Store32((*uint32)(unsafe.Pointer(&mem[off])), 0x01020304)
		if !bytes.Equal(want, mem) {
			t.Fatalf("store to offset %d (-want +got):\n%s", off, cmp.Diff(want, mem))
		}
	}
}

func TestLoad32(t *testing.T) {
	mem := anonymous(t, 4096)
	for i := range mem {
		mem[i] = byte(i*7 + i>>8)
	}
	for off := 0; off < len(mem); off += 4 {
		want := binary.NativeEndian.Uint32(mem[off:])
		if got := Load32((*uint32)(unsafe.Pointer(&mem[off]))); got != want {
			t.Fatalf("load from offset %d is %#x, want %#x", off, got, want)
		}
	}
}

// TestCopy64 copies from every alignment that a work queue entry can have to
// every register of a page, the last bytes of both mappings included, so that
// an access beyond them would fault.
func TestCopy64(t *testing.T) {
	const size = 4096
	src, dst := anonymous(t, size), anonymous(t, size)
	for i := range src {
		src[i] = byte(i*7 + i>>8)
	}
	for to := 0; to+64 <= size; to += 64 {
		for _, from := range []int{0, 8, 16, 24, 32, 40, 48, 56, 64, size - 72, size - 64} {
			for _, copies := range []func(dst, src *[64]byte, n int){Copy64, CopyWC} {
				for i := range dst {
					dst[i] = 0xee
				}
				want := bytes.Clone(dst)
				n := min(4, (size-to)/64, (size-from)/64)
				copy(want[to:to+n*64], src[from:])
				copies((*[64]byte)(dst[to:]), (*[64]byte)(src[from:]), n)
				if !bytes.Equal(want, dst) {
					t.Fatalf("copy from %d to %d (-want +got):\n%s", from, to, cmp.Diff(want, dst))
				}
			}
		}
	}
}

// TestWords copies words to and from every place of a page, the last ones included, and from and to
// ordinary memory of any alignment.
func TestWords(t *testing.T) {
	const size = 4096
	device, host, want := anonymous(t, size), anonymous(t, size), make([]byte, size)
	for off := 0; off < size; off += 4 {
		for _, words := range []int{1, 2, 5, 255} {
			n, shift := 4*min(words, (size-off)/4), words%4
			data := host[size-n-shift:][:n]
			for i := range data {
				data[i] = byte(i*7 + off + n)
			}
			clear(device)
			clear(want)
			copy(want[off:], data)
			StoreWords((*uint32)(unsafe.Pointer(&device[off])), &data[0], n/4)
			if !bytes.Equal(want, device) {
				t.Fatalf("%d bytes stored at %d (-want +got):\n%s", n, off, cmp.Diff(want, device))
			}
			clear(host)
			LoadWords(&data[0], (*uint32)(unsafe.Pointer(&device[off])), n/4)
			if !bytes.Equal(want[off:][:n], data) {
				t.Fatalf("%d bytes loaded at %d (-want +got):\n%s", n, off, cmp.Diff(want[off:][:n], data))
			}
		}
	}
}

// load reads *p with a plain load that the compiler can't merge with others.
//
//go:noinline
func load(p *uint64) uint64 { return *p }

// store writes *p with a plain store.
//
//go:noinline
func store(p *uint64, v uint64) { *p = v }

// TestLitmusMessagePassing is the shape of posting and of polling:
//
//	writer: data = v; ToDevice; Store64(flag, v)
//	reader: flag == v; FromDevice; data == v
//
// Without either barrier arm64 may show the flag and the old data. It is a
// check of the instructions, not a proof: amd64 passes with empty bodies.
func TestLitmusMessagePassing(t *testing.T) {
	for name, before := range map[string]func(){"ToDevice": ToDevice, "StartWC": StartWC} {
		t.Run(name, func(t *testing.T) {
			const rounds = 20000
			words := unsafe.Slice((*uint64)(unsafe.Pointer(&anonymous(t, 4096)[0])), 512)
			data, flag, ack := &words[0], &words[64], &words[128] // far apart
			done := make(chan struct{})
			go func() {
				defer close(done)
				for v := uint64(1); v <= rounds; v++ {
					store(data, v)
					before()
					Store64(flag, v)
					FlushWC()
					wait(func() bool { return load(ack) == v })
				}
			}()
			for v := uint64(1); v <= rounds; v++ {
				wait(func() bool { return load(flag) == v })
				FromDevice()
				if got := load(data); got != v {
					t.Errorf("round %d: flag seen with data %d", v, got)
				}
				ToDevice()
				Store64(ack, v)
				FlushWC()
			}
			<-done
		})
	}
}

func TestStoresDoNotAllocate(t *testing.T) {
	mem := anonymous(t, 4096)
	p, dst := (*uint64)(unsafe.Pointer(&mem[0])), (*[64]byte)(mem[64:])
	if n := testing.AllocsPerRun(100, func() {
		var src [64]byte // stays on the stack only if Copy64 does not leak it
		src[0] = byte(*p)
		ToDevice()
		Store64(p, 1)
		Store32((*uint32)(unsafe.Pointer(p)), 1)
		StartWC()
		Copy64(dst, &src, 1)
		FlushWC()
		StoreWC(p, 2)
		CopyWC(dst, &src, 1)
		StoreWords((*uint32)(unsafe.Pointer(p)), &src[0], 16)
		LoadWords(&src[0], (*uint32)(unsafe.Pointer(p)), 16)
		FromDevice()
	}); n != 0 {
		t.Errorf("%v allocations, want 0", n)
	}
}

func BenchmarkBarriers(b *testing.B) {
	for _, f := range []struct {
		name string
		f    func()
	}{{"ToDevice", ToDevice}, {"FromDevice", FromDevice}, {"StartWC", StartWC}, {"FlushWC", FlushWC}} {
		b.Run(f.name, func(b *testing.B) {
			for b.Loop() {
				f.f()
			}
		})
	}
}

func BenchmarkStore64(b *testing.B) {
	mem := anonymous(b, 4096)
	p := (*uint64)(unsafe.Pointer(&mem[0]))
	for b.Loop() {
		Store64(p, 1)
	}
}

func BenchmarkCopy64(b *testing.B) {
	mem := anonymous(b, 4096)
	for _, from := range []int{64, 72} {
		b.Run(fmt.Sprintf("from%%64=%d", from%64), func(b *testing.B) {
			dst, src := (*[64]byte)(mem), (*[64]byte)(mem[from:])
			for b.Loop() {
				Copy64(dst, src, 1)
			}
		})
	}
}
