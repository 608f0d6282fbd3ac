package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// fixtureKnown is where the fixture's headers differ from what is generated from them.
var fixtureKnown = map[string]difference{
	"5.10": {absent: 2, differs: []string{"FIX_VERSION"}},
	"6.1":  {absent: 0},
}

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

// TestCheckLayout compares what abigen generates with the headers that it was generated from, and with others.
func TestCheckLayout(t *testing.T) {
	abi := filepath.Join(generatedRoot(t), "some", "abi")
	for _, tt := range layoutChanges {
		t.Run(tt.name, func(t *testing.T) {
			summary, problems := checkLayout(abi, fixtureHeaders(t, tt.oldnew...), fixtureKnown)
			text := strings.Join(problems, "\n")
			switch {
			case tt.want == "" && (text != "" || !strings.Contains(summary, "claims hold")):
				t.Errorf("%q, %s, want no problem", summary, text)
			case tt.want != "" && !strings.Contains(text, tt.want):
				t.Errorf("problems %s\nwant %q", text, tt.want)
			}
		})
	}

	// A tool that is not installed is a problem that says how to install it.
	if _, problems := checkLayout(abi, t.TempDir(), fixtureKnown); !strings.Contains(strings.Join(problems, "\n"), "apt-get install linux-libc-dev") {
		t.Errorf("without headers: %q", problems)
	}
	headers := fixtureHeaders(t)
	t.Setenv("PATH", t.TempDir())
	if _, problems := checkLayout(abi, headers, fixtureKnown); !strings.Contains(strings.Join(problems, "\n"), "apt-get install gcc") {
		t.Errorf("without gcc: %q", problems)
	}
}

// TestDamage damages a generated file so that Go's layout is no longer that of C. It must not compile if the
// size is wrong; otherwise checkLayout sees it.
func TestDamage(t *testing.T) {
	for _, tt := range []struct{ name, old, text, build, want string }{
		{"untouched", "package abi", "package abi", "", ""},
		{"size", "	LKey   uint32 // lkey at 12\n", "	LKey   uint32 // lkey at 12\n	More   uint64\n", "overflows", "overflows"},
		{"union", "type WRWR struct {\n	_     structs.HostLayout\n	union [3]uint64", "type WRWR struct {\n	_     structs.HostLayout\n	union [4]uint64", "overflows", "overflows"},
		{"offset", "	Count    uint16  // count at 8\n	_        [6]byte // padding\n", "	_        [6]byte // padding\n	Count    uint16  // count at 8\n", "",
			"Tail.Count is at 8 in C, and at 14 in Go\nstruct fix_tail count is not as in the headers"},
		{"embedded", "	Before   uint32 // before at 0\n	AnonLeft        // at 4\n", "	AnonLeft        // at 4\n	Before   uint32 // before at 0\n", "", "Anon.AnonLeft is at 4 in C, and at 0 in Go"},
		{"member", "unsafe.Add(unsafe.Pointer(&u.union), 2)", "unsafe.Add(unsafe.Pointer(&u.union), 1)", "", "struct fix_anon high is not as in the headers"},
		{"comment of a field", "// lkey at 12", "//", "", "SGE.LKey has no comment with its C name and offset"},
		{"comment of a method", "// ImmData is member imm_data.", "//", "", "WREx.ImmData has no comment with its C name"},
		{"comment of a type", "// SGE is struct fix_sge (fix.h), 16 bytes.", "//", "", "SGE has no comment that names its C type"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			root := generatedRoot(t)
			abi := filepath.Join(root, "some", "abi")
			must(t, os.WriteFile(filepath.Join(root, "go.mod"), []byte("module fixture\n\ngo 1.26\n"), 0o666))
			edit(t, filepath.Join(abi, "zfix.go"), tt.old, tt.text)
			if tt.want == tt.build { // for the others, checkLayout knows as well that the types are right
				cmd := exec.Command("go", "vet", ".")
				cmd.Dir = abi
				cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOFLAGS=", "GOWORK=off")
				if out, err := cmd.CombinedOutput(); (err == nil) != (tt.build == "") || !strings.Contains(string(out), tt.build) {
					t.Errorf("%v, want %q\n%s", err, tt.build, out)
				}
			}
			_, problems := checkLayout(abi, fixtureHeaders(t), fixtureKnown)
			if text := strings.Join(problems, "\n"); !strings.Contains(text, tt.want) || tt.want == "" && text != "" {
				t.Errorf("problems %s\nwant %q", text, tt.want)
			}
		})
	}
}
