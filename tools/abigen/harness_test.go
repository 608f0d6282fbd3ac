package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// layoutTest is what a package has by hand beside the generated files.
const layoutTest = `package abi

import "testing"

func TestLayout(t *testing.T) {
	checkLayout(t, map[string]layoutKnown{
		"5.10": {absent: 2, differs: []string{"FIX_VERSION"}},
		"6.1":  {absent: 0},
	})
}
`

// version returns the change to a version of the kernel, as LINUX_VERSION_CODE has it.
func version(code string) []string {
	return []string{"LINUX_VERSION_CODE 393472", "LINUX_VERSION_CODE " + code}
}

// Versions of the kernel.
const linux5_10, linux5_15, linux6_12, linux5_4 = "330462", "331680", "396291", "328704"

// Changes that take a name away.
var (
	gone  = []string{"	FIX_KIND_NONE,\n	FIX_KIND_ONE,", "	FIX_KIND_ONE = 1,"}
	minus = []string{"	FIX_MINUS = -2,\n", ""}
)

// layoutChanges are changes to the headers, and what the layout test says about them.
var layoutChanges = []struct {
	name   string
	oldnew []string
	want   string // "" if the test must pass
}{
	{"same headers", version("393472"), ""},
	{"size", []string{"	__u32 lkey;\n", "	__u32 lkey;\n	__u64 more;\n"}, "struct fix_sge is not as in the headers of Linux 6.1: sizeof(struct fix_sge) == 16"},
	{"offset", []string{"	__u32 length;\n	__u32 lkey;", "	__u32 lkey;\n	__u32 length;"}, "struct fix_sge lkey is not as in"},
	{"field grows into padding", []string{"		__u16 pkey_index;", "		__u32 pkey_index;"}, "struct fix_wr wr.ud.pkey_index is not as in"},
	{"alignment", []string{"struct fix_old_tail {", "struct __attribute__((aligned(2), packed)) fix_old_tail {"}, "struct fix_old_tail is not as in"},
	{"member of a union", []string{"		__u8 raw[20];", "		__u8 raw[21];"}, "struct fix_wr wr.raw is not as in"},
	{"member of a nameless struct", []string{"			__u16 low;\n			__u16 high;", "			__u16 high;\n			__u16 low;"}, "struct fix_anon low is not as in"},
	{"offset of a tail", []string{"	__u16 count;\n	__u16 odd[];", "	__u16 count;\n	__u16 one;\n	__u16 odd[];"}, "struct fix_tail odd[0] is not as in"},
	{"element of a tail", []string{"	__u32 driver_data[0];", "	__u16 driver_data[0];"}, "struct fix_old_tail driver_data[0] is not as in"},
	{"constant", []string{"FIX_OTHER = 7", "FIX_OTHER = 8"}, "FIX_OTHER is not as in"},
	{"negative constant", []string{"FIX_MINUS = -2", "FIX_MINUS = -3"}, "FIX_MINUS is not as in"},
	{"sign of a constant", []string{"	FIX_FLAG_TOP = 1ULL << 63,", "	FIX_FLAG_TOP = -0x7fffffffffffffffLL - 1,"}, "FIX_FLAG_TOP is not as in"},
	{"macro", []string{"FIX_VERSION 3", "FIX_VERSION 4"}, "FIX_VERSION is not as in"},
	{"shift", []string{"client << 10", "client << 11"}, "FIX_TYPE_SHIFT is not as in"},

	{"name gone", gone, "lack 1 names of this package, and at most 0 are on record; absent: FIX_KIND_NONE"},
	{"struct gone", []string{"struct fix_old_tail {", "struct fix_older_tail {"}, "lack 3 names of this package, and at most 0 are on record; absent: struct fix_old_tail, struct fix_old_tail handle, struct fix_old_tail driver_data[0]"},
	{"field gone", []string{"		__u32 invalidate_rkey;\n", ""}, "absent: struct fix_wr ex.invalidate_rkey"},
	{"no C", []string{"struct fix_sge {", "struct fix_sge"}, "gcc: "},

	{"known to differ", slices.Concat(version(linux5_10), gone, minus, []string{"FIX_VERSION 3", "FIX_VERSION 2"}), ""},
	{"known to differ and does not", slices.Concat(version(linux5_10), gone, minus), "FIX_VERSION is on record as different in Linux 5.10, and is not"},
	{"fewer absent than on record", slices.Concat(version(linux5_10), gone, []string{"FIX_VERSION 3", "FIX_VERSION 2"}), ""},
	{"between two", slices.Concat(version(linux5_15), gone), ""},
	{"between two and different", slices.Concat(version(linux5_15), []string{"FIX_VERSION 3", "FIX_VERSION 2"}), "FIX_VERSION is not as in the headers of Linux 5.15"},
	{"newer", version(linux6_12), ""},
	{"newer and gone", slices.Concat(version(linux6_12), gone), "the headers of Linux 6.12 lack 1 names of this package, and it should be 0 to 0"},
	{"older than all", version(linux5_4), "nothing is on record for so old a kernel"},
	{"no version", []string{"LINUX_VERSION_CODE", "LINUX_VERSION"}, "no LINUX_VERSION_CODE"},
}

// buildLayoutTest generates a package with a layout test, vets it, and returns the program of its tests.
func buildLayoutTest(t *testing.T) (binary string) {
	t.Helper()
	root := generatedRoot(t)
	abi := filepath.Join(root, "some", "abi")
	for name, text := range map[string]string{
		filepath.Join(root, "go.mod"):        "module fixture\n\ngo 1.26\n",
		filepath.Join(abi, "layout_test.go"): layoutTest,
	} {
		if err := os.WriteFile(name, []byte(text), 0o666); err != nil {
			t.Fatal(err)
		}
	}
	binary = filepath.Join(root, "abi.test")
	goTool := func(env string, args ...string) {
		t.Helper()
		cmd := exec.Command("go", args...)
		cmd.Dir = abi
		cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOFLAGS=", "GOWORK=off", env)
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("go %s: %v\n%s", strings.Join(args, " "), err, out)
		}
	}
	goTool("GOARCH=amd64", "vet", ".")
	goTool("GOARCH=arm64", "vet", ".")
	goTool("GOFLAGS=", "test", "-c", "-o", binary, ".")
	return binary
}

// TestHarness builds what abigen generates and runs its layout test against the
// headers that it was generated from, and against others.
func TestHarness(t *testing.T) {
	binary := buildLayoutTest(t)
	for _, tt := range layoutChanges {
		t.Run(tt.name, func(t *testing.T) {
			cmd := exec.Command(binary, "-test.run=^TestLayout$", "-test.v")
			cmd.Env = append(os.Environ(), "GOVERBS_UAPI_INCLUDE="+fixtureHeaders(t, tt.oldnew...))
			out, err := cmd.CombinedOutput()
			switch {
			case tt.want == "" && (err != nil || !strings.Contains(string(out), "claims hold")):
				t.Errorf("%v, want success\n%s", err, out)
			case tt.want != "" && (err == nil || !strings.Contains(string(out), tt.want)):
				t.Errorf("%v, want a failure with %q\n%s", err, tt.want, out)
			}
		})
	}

	// A tool that is not installed fails the test with a message that says how to install it.
	for _, tt := range []struct{ env, want string }{
		{"PATH=" + t.TempDir(), "apt-get install gcc"},
		{"GOVERBS_UAPI_INCLUDE=" + t.TempDir(), "apt-get install linux-libc-dev"},
	} {
		cmd := exec.Command(binary, "-test.run=^TestLayout$")
		cmd.Env = append(os.Environ(), "GOVERBS_UAPI_INCLUDE="+fixtureHeaders(t), tt.env)
		if out, err := cmd.CombinedOutput(); err == nil || !strings.Contains(string(out), tt.want) {
			t.Errorf("%s: %v, want a failure with %q\n%s", tt.env, err, tt.want, out)
		}
	}
}

// TestGuards damages a generated file so that Go's layout is no longer that of
// C, and expects that it does not compile.
func TestGuards(t *testing.T) {
	for _, tt := range []struct{ name, old, text string }{
		{"size", "	LKey   uint32 // lkey\n", "	LKey   uint32 // lkey\n	More   uint64\n"},
		{"offset", "	Count    uint16  // count\n	_        [6]byte // padding\n", "	_        [6]byte // padding\n	Count    uint16  // count\n"},
		{"union", "type WRWR struct {\n	_     structs.HostLayout\n	union [3]uint64", "type WRWR struct {\n	_     structs.HostLayout\n	union [4]uint64"},
	} {
		root := generatedRoot(t)
		abi := filepath.Join(root, "some", "abi")
		if err := os.WriteFile(filepath.Join(root, "go.mod"), []byte("module fixture\n\ngo 1.26\n"), 0o666); err != nil {
			t.Fatal(err)
		}
		edit(t, filepath.Join(abi, "zfix.go"), tt.old, tt.text)
		cmd := exec.Command("go", "build", ".")
		cmd.Dir = abi
		cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOFLAGS=", "GOWORK=off")
		if out, err := cmd.CombinedOutput(); err == nil || !strings.Contains(string(out), "overflows") {
			t.Errorf("%s: %v, want a constant that overflows\n%s", tt.name, err, out)
		}
	}
}
