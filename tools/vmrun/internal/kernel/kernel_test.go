package kernel

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestParts(t *testing.T) {
	var got []string
	for _, p := range []string{
		"linux-image-amd64", "linux-image-5.10.0-46-amd64", "linux-image-6.12.117+deb13-arm64", "linux-base", "linux-base-amd64",
		"linux-base-7.2.13+deb14-amd64", "linux-binary-7.2.13+deb14-amd64", "linux-modules-7.2.13+deb14-amd64", "linux-headers-6.1.0-50-amd64", "kmod",
	} {
		if parts.MatchString(p) {
			got = append(got, p)
		}
	}
	want := []string{
		"linux-image-5.10.0-46-amd64", "linux-image-6.12.117+deb13-arm64",
		"linux-base-7.2.13+deb14-amd64", "linux-binary-7.2.13+deb14-amd64", "linux-modules-7.2.13+deb14-amd64",
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Error(d)
	}
}

// Debian has the image in two places, depending on the kernel's age.
func TestOpen(t *testing.T) {
	for _, image := range []string{"boot/vmlinuz-9.9-amd64", "usr/lib/modules/9.9-amd64/vmlinuz"} {
		entry := t.TempDir()
		root := filepath.Join(entry, "root")
		write(t, entry, "packages.json", []byte(`["linux-image-9.9-amd64=9.9-1"]`))
		write(t, root, "usr/lib/modules/9.9-amd64/modules.order", nil)
		if _, err := open(root); err == nil || !strings.Contains(err.Error(), "no vmlinuz for 9.9-amd64") {
			t.Errorf("without an image: %v", err)
		}
		write(t, root, image, []byte("MZ"))
		k, err := open(root)
		must(t, err)
		first := k.ID
		if k.Version != "9.9-1" {
			t.Errorf("version %s", k.Version)
		}
		if k.Image != filepath.Join(root, image) || !strings.HasPrefix(first, "9.9-amd64-") {
			t.Errorf("image %s, ID %s", k.Image, k.ID)
		}
		// The same release built anew must not meet the old initramfs.
		write(t, entry, "packages.json", []byte(`["linux-image-9.9-amd64=9.9-2"]`))
		if k, err := open(root); err != nil || k.ID == first {
			t.Errorf("a new build: ID %s again, %v", first, err)
		}
		write(t, root, "usr/lib/modules/9.10-amd64/modules.order", nil)
		if _, err := open(root); err == nil {
			t.Error("two kernels in one entry were taken")
		}
	}
}

func TestLocal(t *testing.T) {
	dir := t.TempDir()
	image := func(at int, magic string) string {
		b := make([]byte, 1024)
		copy(b[at:], magic)
		p := filepath.Join(dir, "image")
		must(t, os.WriteFile(p, b, 0o644))
		return p
	}
	elf := "\x7fELF\x02\x01\x01" + strings.Repeat("\x00", 11) + "\x3e"
	check(t, "bzImage", image(0x202, "HdrS"), "amd64", "")
	check(t, "bzImage for the wrong guest", image(0x202, "HdrS"), "arm64", "is for amd64, the guest is arm64")
	check(t, "Image", image(0x38, "ARM\x64"), "arm64", "")
	check(t, "Image for the wrong guest", image(0x38, "ARM\x64"), "amd64", "is for arm64")
	check(t, "vmlinux", image(0, elf), "amd64", "use arch/x86/boot/bzImage")
	check(t, "something else", image(0, "?"), "amd64", "") // QEMU knows more formats
	check(t, "a directory", dir, "amd64", "is a directory")
	check(t, "nothing", filepath.Join(dir, "none"), "amd64", "no such file")
	short := filepath.Join(dir, "short")
	write(t, dir, "short", []byte("MZ"))
	check(t, "a short file", short, "amd64", "too short")
}

func check(t *testing.T, name, path, arch, says string) {
	t.Helper()
	k, err := Local(path, "", arch)
	switch {
	case says == "" && (err != nil || k.Image != path || k.ID != ""):
		t.Errorf("%s: %v", name, err)
	case says != "" && (err == nil || !strings.Contains(err.Error(), says)):
		t.Errorf("%s: %v, want %q in it", name, err, says)
	}
}

// The version is the version of the package which is named after the kernel.
func TestVersionOf(t *testing.T) {
	for _, tt := range []struct{ list, want string }{
		{`["linux-image-6.1.0-56-amd64=6.1.192-2"]`, "6.1.192-2"},
		{`["linux-base=4.12", "linux-modules-6.1.0-56-amd64=1:6.1.192-2"]`, "1:6.1.192-2"},
		{`["linux-base=4.12"]`, ""}, {`[]`, ""}, {`nonsense`, ""},
	} {
		got, err := versionOf([]byte(tt.list), "6.1.0-56-amd64")
		if got != tt.want || (err == nil) != (tt.want != "") {
			t.Errorf("%s: %q, %v", tt.list, got, err)
		}
	}
}
