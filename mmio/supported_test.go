package mmio

import (
	"runtime"
	"testing"
)

// wait spins until cond holds, and lets other goroutines run meanwhile.
func wait(cond func() bool) {
	for !cond() {
		runtime.Gosched()
	}
}

func TestSupported(t *testing.T) {
	want := runtime.GOARCH == "amd64" || runtime.GOARCH == "arm64"
	if Supported != want {
		t.Fatalf("Supported = %v on %s, want %v", Supported, runtime.GOARCH, want)
	}
	if Supported {
		return
	}
	for name, f := range map[string]func(){
		"ToDevice": ToDevice, "FromDevice": FromDevice, "StartWC": StartWC, "FlushWC": FlushWC,
		"Store64": func() { Store64(new(uint64), 1) },
		"StoreWC": func() { StoreWC(new(uint64), 1) },
		"CopyWC":  func() { CopyWC(new([64]byte), new([64]byte), 1) },
		"Copy64":  func() { Copy64(new([64]byte), new([64]byte), 1) },

		"CopyAndRing": func() { CopyAndRing(new([64]byte), new([64]byte), 1, new(uint32), 1) },

		"StoreWords": func() { StoreWords(new(uint32), new(byte), 1) },
		"LoadWords":  func() { LoadWords(new(byte), new(uint32), 1) },
	} {
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("%s returned on an architecture without barriers", name)
				}
			}()
			f()
		}()
	}
}
