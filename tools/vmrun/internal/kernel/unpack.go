package kernel

import (
	"bytes"
	"debug/elf"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"

	"github.com/klauspost/compress/zstd"
)

// Offsets in the setup header of an image for x86 (Documentation/arch/x86/boot.rst).
const (
	setupSectors  = 0x1f1 // of 512 bytes, without the first
	payloadOffset = 0x248 // from where the protected-mode code begins
	payloadLength = 0x24c
	headerEnd     = 0x250
)

// mostUnpacked is more than the largest kernel without debug information.
const mostUnpacked = 512 << 20

// Unpacked returns the path of a kernel for x86 as an ELF file, which QEMU starts at its entry point for PVH. The image
// unpacks itself, which takes an emulated processor half of the time of a boot. The file is beside the image, and is
// made if it is not there. It is an error if the kernel is not Debian's, has no such entry point, or needs xz to be
// unpacked and this machine does not have it.
func (k *Kernel) Unpacked() (string, error) {
	if k.ID == "" {
		return "", errors.New("only kernels in the cache are unpacked")
	}
	name := k.Image + ".elf"
	if s, err := os.Stat(name); err == nil && s.Size() > 0 {
		return name, nil
	}
	// Another vmrun may do the same, or replace the folder with that of a newer kernel. The file is in the folder that
	// has the image, or the new folder does not get it.
	f, err := os.CreateTemp(filepath.Dir(name), ".elf-*")
	if err != nil {
		return "", err
	}
	defer os.Remove(f.Name())
	defer f.Close()
	image, err := os.ReadFile(k.Image)
	if err != nil {
		return "", err
	}
	program, err := unpack(image)
	if err != nil {
		return "", fmt.Errorf("%s: %w", k.Image, err)
	}
	if _, err = f.Write(program); err == nil {
		err = f.Sync()
	}
	if err = errors.Join(err, f.Close()); err != nil {
		return "", err
	}
	return name, os.Rename(f.Name(), name)
}

// unpack returns the ELF file in an image for x86.
func unpack(image []byte) ([]byte, error) {
	if len(image) < headerEnd {
		return nil, fmt.Errorf("%d bytes are too few for a header", len(image))
	}
	word := func(at int) uint64 { return uint64(binary.LittleEndian.Uint32(image[at:])) }
	begin := (uint64(image[setupSectors])+1)*512 + word(payloadOffset)
	end := begin + word(payloadLength)
	if end > uint64(len(image)) {
		return nil, fmt.Errorf("the payload ends at %d, the file at %d", end, len(image))
	}
	payload := image[begin:end]
	var program []byte
	var err error
	switch {
	case bytes.HasPrefix(payload, []byte("\xfd7zXZ\x00")):
		// The size of the kernel follows the stream. Package xz has no filter for the code of x86.
		cmd := exec.Command("xz", "--decompress", "--stdout", "--single-stream")
		cmd.Stdin = bytes.NewReader(payload)
		program, err = cmd.Output()
	case bytes.HasPrefix(payload, []byte("\x28\xb5\x2f\xfd")) && len(payload) > 4:
		var d *zstd.Decoder
		if d, err = zstd.NewReader(bytes.NewReader(payload[:len(payload)-4])); err == nil {
			defer d.Close()
			program, err = io.ReadAll(io.LimitReader(d, mostUnpacked))
		}
	default:
		return nil, errors.New("the payload is neither xz nor zstd")
	}
	if err != nil {
		return nil, err
	}
	if !startsByPVH(program) {
		return nil, errors.New("the kernel has no entry point for PVH")
	}
	return program, nil
}

// startsByPVH reports whether an ELF file has the note that names its entry point for PVH.
func startsByPVH(program []byte) bool {
	const physical32Entry = 18 // XEN_ELFNOTE_PHYS32_ENTRY
	f, err := elf.NewFile(bytes.NewReader(program))
	if err != nil {
		return false
	}
	for _, p := range f.Progs {
		if p.Type != elf.PT_NOTE {
			continue
		}
		notes, err := io.ReadAll(p.Open())
		if err != nil {
			return false
		}
		for len(notes) >= 12 {
			owner, size, kind := f.ByteOrder.Uint32(notes), f.ByteOrder.Uint32(notes[4:]), f.ByteOrder.Uint32(notes[8:])
			next := 12 + (uint64(owner)+3)&^3 + (uint64(size)+3)&^3
			if next > uint64(len(notes)) {
				return false
			}
			if kind == physical32Entry && bytes.HasPrefix(notes[12:], []byte("Xen\x00")) {
				return true
			}
			notes = notes[next:]
		}
	}
	return false
}
