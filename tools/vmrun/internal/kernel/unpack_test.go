package kernel

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/klauspost/compress/zstd"
)

// program is an ELF file with a note of a kind by an owner, and nothing else.
func program(t *testing.T, owner string, kind uint32) []byte {
	t.Helper()
	var b bytes.Buffer
	put := func(all ...any) {
		for _, v := range all {
			if err := binary.Write(&b, binary.LittleEndian, v); err != nil {
				t.Fatal(err)
			}
		}
	}
	const header, segment, note = 64, 56, 2*12 + 3*4 + 8
	put([]byte("\x7fELF\x02\x01\x01"), make([]byte, 9), uint16(2), uint16(62), uint32(1), uint64(0), uint64(header), uint64(0), uint32(0))
	put(uint16(header), uint16(segment), uint16(1), uint16(64), uint16(0), uint16(0))
	put(uint32(4), uint32(0), uint64(header+segment), uint64(0), uint64(0), uint64(note), uint64(note), uint64(4))
	put(uint32(4), uint32(3), uint32(6), []byte("Xen\x00"), uint32(0x6c6966)) // another one before
	put(uint32(4), uint32(8), kind, []byte(owner+"\x00"), uint64(0x100_0000))
	return b.Bytes()
}

// imageOf is an image that has a payload.
func imageOf(payload []byte) []byte {
	b := make([]byte, 2*512+16, 2*512+16+len(payload))
	b[setupSectors] = 1
	binary.LittleEndian.PutUint32(b[payloadOffset:], 16)
	binary.LittleEndian.PutUint32(b[payloadLength:], uint32(len(payload)))
	return append(b, payload...)
}

// zstandard compresses a kernel as a build does: its size follows.
func zstandard(t *testing.T, program []byte) []byte {
	t.Helper()
	w, err := zstd.NewWriter(nil)
	if err != nil {
		t.Fatal(err)
	}
	return binary.LittleEndian.AppendUint32(w.EncodeAll(program, nil), uint32(len(program)))
}

// TestUnpacked: the kernel is unpacked once, beside its image.
func TestUnpacked(t *testing.T) {
	want := program(t, "Xen", 18)
	payloads := map[string][]byte{"zstd": zstandard(t, want)}
	if _, err := exec.LookPath("xz"); err == nil {
		cmd := exec.Command("xz", "--check=crc32", "--x86", "--lzma2")
		cmd.Stdin = bytes.NewReader(want)
		out, err := cmd.Output()
		if err != nil {
			t.Fatal(err)
		}
		payloads["xz"] = binary.LittleEndian.AppendUint32(out, uint32(len(want)))
	}
	for name, payload := range payloads {
		image := filepath.Join(t.TempDir(), "vmlinuz")
		if err := os.WriteFile(image, imageOf(payload), 0o600); err != nil {
			t.Fatal(err)
		}
		k := &Kernel{Image: image, ID: "x"}
		if err := os.WriteFile(image+".elf", nil, 0o600); err != nil { // such as after a power cut
			t.Fatal(err)
		}
		for range 2 {
			file, err := k.Unpacked()
			if err != nil {
				t.Fatalf("%s: %v", name, err)
			}
			if got, err := os.ReadFile(file); err != nil || !bytes.Equal(got, want) {
				t.Errorf("%s: %d bytes, %v, want the program", name, len(got), err)
			}
			if all, err := os.ReadDir(filepath.Dir(image)); len(all) != 2 {
				t.Errorf("%s: %v, %v beside the image, want it and the kernel", name, all, err)
			}
			if err := os.Truncate(image, 0); err != nil { // it is not read again
				t.Fatal(err)
			}
		}
	}
}

// TestUnpackedMeanwhile: a newer kernel that takes the place of the folder meanwhile does not get the old one.
func TestUnpackedMeanwhile(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "kernel")
	image := filepath.Join(dir, "vmlinuz")
	payload := append([]byte("\xfd7zXZ\x00"), 1, 0, 0, 0) // what is in it does not matter
	bin := t.TempDir()
	for name, text := range map[string][]byte{
		image:                         imageOf(payload),
		filepath.Join(bin, "xz"):      []byte("#!/bin/sh\nmv " + dir + " " + dir + ".old && mkdir " + dir + " && exec cat " + bin + "/program\n"),
		filepath.Join(bin, "program"): program(t, "Xen", 18),
	} {
		if err := errors.Join(os.MkdirAll(filepath.Dir(name), 0o700), os.WriteFile(name, text, 0o700)); err != nil {
			t.Fatal(err)
		}
	}
	t.Setenv("PATH", bin+":"+os.Getenv("PATH"))
	if name, err := (&Kernel{Image: image, ID: "x"}).Unpacked(); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("%s, %v", name, err)
	}
	if all, err := os.ReadDir(dir); len(all) != 0 || err != nil {
		t.Errorf("the new folder has %v, %v", all, err)
	}
}

// TestNotUnpacked: what is no image of a kernel that starts by PVH is refused.
func TestNotUnpacked(t *testing.T) {
	good := imageOf(zstandard(t, program(t, "Xen", 18)))
	long := bytes.Clone(good)
	long[payloadLength+3] = 0x7f
	for _, c := range []struct {
		name  string
		image []byte
		says  string
	}{
		{"empty", nil, "too few for a header"},
		{"a payload beyond the end", long, "the payload ends at"},
		{"gzip", imageOf([]byte("\x1f\x8b\x08\x00 and so on")), "neither xz nor zstd"},
		{"half a payload", imageOf(zstandard(t, program(t, "Xen", 18))[:40]), ""},
		{"no ELF file", imageOf(zstandard(t, []byte("no kernel"))), "no entry point for PVH"},
		{"another note", imageOf(zstandard(t, program(t, "Xen", 17))), "no entry point for PVH"},
		{"another owner", imageOf(zstandard(t, program(t, "GNU", 18))), "no entry point for PVH"},
	} {
		if got, err := unpack(c.image); err == nil || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s: %d bytes, %v, want an error that says %q", c.name, len(got), err, c.says)
		}
	}
	if file, err := (&Kernel{Image: "vmlinuz"}).Unpacked(); err == nil {
		t.Errorf("a kernel of the user is unpacked as %s", file)
	}
}
