package source

import (
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// A function's instructions as go tool objdump prints them, without addresses. Instructions that
// store a doorbell record begin with recordMark and those that load the owner bit of a completion
// with ownerMark, whatever function they were inlined into.
type function []string

const (
	recordMark = "record: "
	ownerMark  = "owner: "
)

// lineOf returns the line of a file of mmio that begins with a prefix, as objdump names it.
func lineOf(t *testing.T, name, prefix string) string {
	t.Helper()
	src, err := os.ReadFile(filepath.Join(root, "mmio", name))
	must(t, err)
	name = filepath.Base(name)
	n := 0
	for l := range strings.Lines(string(src)) {
		if n++; strings.HasPrefix(l, prefix) {
			return fmt.Sprintf("%s:%d", name, n)
		}
	}
	t.Fatalf("no line of %s begins with %q", name, prefix)
	return ""
}

// disassemble builds a program that uses all of the library, the conformance tests, and the tests of
// mmio/efa for an architecture. It returns the functions with barriers and doorbells, or into which such are
// inlined.
func disassemble(t *testing.T, arch string) map[string]function {
	t.Helper()
	all := map[string]function{}
	for _, program := range [][2]string{{"test/suites", "./conformance"}, {".", "./mmio/efa"}} {
		exe := filepath.Join(t.TempDir(), "test")
		build := exec.Command("go", "test", "-C", program[0], "-c", "-ldflags=-w", "-o", exe, program[1])
		build.Dir = root
		build.Env = append(os.Environ(), "GOARCH="+arch, "CGO_ENABLED=0")
		if out, err := build.CombinedOutput(); err != nil {
			t.Fatalf("go test -c: %v\n%s", err, out)
		}
		maps.Copy(all, functions(t, exe))
	}
	if len(all) < 20 {
		t.Fatalf("only %d functions of mmio are in the program", len(all))
	}
	return all
}

// functions returns the functions of a program.
func functions(t *testing.T, exe string) map[string]function {
	t.Helper()
	out, err := exec.Command("go", "tool", "objdump", "-s", `goverbs/(mmio(/mlx5|/efa)?|uverbs)\.`, exe).Output()
	if err != nil {
		t.Fatalf("go tool objdump: %v", err)
	}
	marks := map[string]string{
		lineOf(t, "mlx5/record.go", "\tr.w[i] = "):                       recordMark,
		lineOf(t, "mlx5/cq.go", "\town := atomic.LoadUint32((*uint32)("): ownerMark,
		lineOf(t, "efa/completion.go", "\tif (atomic.LoadUint32("):       ownerMark,
	}
	line := regexp.MustCompile(`^\s+(\S+:\d+)\s+0x[0-9a-f]+\s+[0-9a-f]+\s+(.*?)\s*$`)
	all := map[string]function{}
	var name string
	for l := range strings.Lines(string(out)) {
		if rest, ok := strings.CutPrefix(l, "TEXT "); ok {
			name, _, _ = strings.Cut(rest, "(SB)")
			name = strings.TrimSuffix(strings.TrimPrefix(name, module+"/"), ".abi0")
		} else if m := line.FindStringSubmatch(l); m != nil {
			all[name] = append(all[name], marks[m[1]]+m[2])
		}
	}
	return all
}

// has reports whether a function has an instruction that a pattern describes.
func (f function) has(pattern string) bool { return f.index(0, pattern) >= 0 }

// index returns the place of the next instruction, from one on, that a pattern describes, or -1.
func (f function) index(from int, pattern string) int {
	re := regexp.MustCompile(pattern)
	if i := slices.IndexFunc(f[from:], re.MatchString); i >= 0 {
		return from + i
	}
	return -1
}

// locked are instructions that read and write memory at once, by architecture: of device
// memory they are a read that nobody asked for, and on some buses an error.
var locked = map[string]string{
	"amd64": `\bLOCK\b|\bXCHG|\bCMPXCHG|\bXADD`,
	"arm64": `\b(LDAXR|STLXR|LDXR|STXR|CAS|SWP|LDADD|LDCLR|LDOR|STLR|LDAR)[A-Z]*\b`,
}

// TestBarrierInstructions: each barrier is the instruction that it must be in a program as
// built, and what touches device memory is stores and loads and nothing else.
func TestBarrierInstructions(t *testing.T) {
	t.Parallel()
	for arch, want := range map[string]map[string][]string{
		"amd64": {
			"mmio.StartWC":     {`^SFENCE`},
			"mmio.FlushWC":     {`^SFENCE`},
			"mmio.StoreWC":     {`^SFENCE`, `^MOVQ AX, 0\(DI\)`, `^SFENCE`, `^RET`},
			"mmio.CopyWC":      {`^SFENCE`, `^MOVDQU X0, 0\(DI\)`, `^MOVDQU X1, 0x10\(DI\)`, `^MOVDQU X2, 0x20\(DI\)`, `^MOVDQU X3, 0x30\(DI\)`, `^JG`, `^SFENCE`, `^RET`},
			"mmio.CopyAndRing": {`^SFENCE`, `^MOVDQU X0, 0\(DI\)`, `^MOVDQU X1, 0x10\(DI\)`, `^MOVDQU X2, 0x20\(DI\)`, `^MOVDQU X3, 0x30\(DI\)`, `^JG`, `^SFENCE`, `^MOVL AX, 0\(DI\)`, `^RET`},
			"mmio.Store32":     {`^MOVL AX, 0\(DI\)`, `^RET`},
			"mmio.StoreWords":  {`^SFENCE`, `^MOVL 0\(SI\), AX`, `^MOVL AX, 0\(DI\)`, `^JG`, `^SFENCE`, `^RET`},
			"mmio.LoadWords":   {`^LFENCE`, `^MOVL 0\(SI\), AX`, `^MOVL AX, 0\(DI\)`, `^JG`, `^LFENCE`, `^RET`},
			// Where an index of a ring is stored: a load that is atomic for the compiler, and a store.
			"uverbs.(*QP).ringRxe": {`^MOVL 0\(R?([A-D]X|SI|DI|[0-9]+)\), `, `^MOVL .*, 0\(R?([A-D]X|SI|DI|[0-9]+)\)`, `^CALL`},
			"uverbs.(*CQ).pollRxe": {`^MOVL 0\(R?([A-D]X|SI|DI|[0-9]+)\), `, `^MOVL .*, 0\(R?([A-D]X|SI|DI|[0-9]+)\)`},
			"mmio.Copy64":          {`^MOVDQU X0, 0\(DI\)`, `^MOVDQU X1, 0x10\(DI\)`, `^MOVDQU X2, 0x20\(DI\)`, `^MOVDQU X3, 0x30\(DI\)`},
		},
		"arm64": {
			"mmio.ToDevice":    {`^DMB \$2`},
			"mmio.FromDevice":  {`^DMB \$1`},
			"mmio.StartWC":     {`^DSB \$14`},
			"mmio.FlushWC":     {`^DSB \$14`},
			"mmio.StoreWC":     {`^DSB \$14`, `^MOVD R1, \(R0\)`, `^DSB \$14`, `^RET`},
			"mmio.CopyWC":      {`^DSB \$14`, `^VST1 \[V0.D2, V1.D2, V2.D2, V3.D2\], \(R0\)`, `^BGT`, `^DSB \$14`, `^RET`},
			"mmio.CopyAndRing": {`^DSB \$14`, `^VST1 \[V0.D2, V1.D2, V2.D2, V3.D2\], \(R0\)`, `^BGT`, `^DSB \$14`, `^MOVW R1, \(R0\)`, `^RET`},
			"mmio.Store32":     {`^MOVW R1, \(R0\)`, `^RET`},
			"mmio.StoreWords":  {`^DSB \$14`, `^MOVWU \(R1\), R3`, `^MOVW R3, \(R0\)`, `^BGT`, `^DSB \$14`, `^RET`},
			"mmio.LoadWords":   {`^DMB \$1`, `^MOVWU \(R1\), R3`, `^MOVW R3, \(R0\)`, `^BGT`, `^DMB \$1`, `^RET`},
			"mmio.Copy64":      {`^VST1 \[V0.D2, V1.D2, V2.D2, V3.D2\], \(R0\)`},
		},
	} {
		t.Run(arch, func(t *testing.T) {
			t.Parallel()
			all := disassemble(t, arch)
			for name, patterns := range want {
				f, ok := all[name]
				if !ok {
					t.Errorf("%s is not in the program", name)
					continue
				}
				at := 0
				for _, p := range patterns {
					i := f.index(at, p)
					if i < 0 {
						t.Errorf("%s has no %q behind the ones before it:\n%s", name, p, strings.Join(f, "\n"))
						break
					}
					at = i + 1
				}
				if f.has(locked[arch]) {
					t.Errorf("%s has a locked operation:\n%s", name, strings.Join(f, "\n"))
				}
			}
			checkDoorbells(t, arch, all)
			checkOwners(t, all)
		})
	}
}

// toDevice is a call of mmio.ToDevice or, on amd64, what it is there: nothing but a load that
// stops the compiler.
const toDevice = `mmio\.ToDevice|mmio\.compilerBarrier`

// The effects of a doorbell, as patterns of an instruction.
const (
	callOf      = `^(CALL|JMP|B|MOVL) .*`
	recordStore = `^` + recordMark + `MOV[A-Z]* [A-Z0-9]+, \S*\((SI|DI|[A-D]X|R[0-9]+)\)$`
)

// fenced are calls that begin with StartWC and end with FlushWC.
const fenced = callOf + "mmio.(StoreWC|CopyWC)"

// store32 is a doorbell of efa.
const store32 = callOf + "mmio.Store32"

// copied writes to a register of the device without a barrier, as does what toRegister finds.
const (
	copied     = callOf + "mmio.Copy64"
	toRegister = callOf + "mmio.(Store64|Copy64)"
)

// doorbells are the functions that write to a register of the device, with what they must do in which
// order, on each way through them.
var doorbells = map[string][][]string{
	"mmio/mlx5.(*SendQueue).Publish": {
		{callOf + `(` + toDevice + `)`, recordStore, fenced},
		{callOf + `(` + toDevice + `)`, recordStore, callOf + "mmio.StartWC", copied, copied, callOf + "mmio.FlushWC"},
	},
	"mmio/mlx5.(*CompQueue).ringArm":   {{recordStore, fenced}},
	"mmio/efa.(*SendQueue).Publish":    {{callOf + "mmio.CopyAndRing"}},
	"mmio/efa.(*RecvQueue).Publish":    {{callOf + `(` + toDevice + `)`, store32}},
	"mmio/efa.(*SendQueue).hand":       {{callOf + "mmio.CopyAndRing"}},
	"mmio/efa.(*CompQueue).tell":       {{callOf + `(` + toDevice + `)`, store32}},
	"mmio/efa.(*CompQueue).ReleaseOne": {{callOf + `(` + toDevice + `)`, store32}},
}

// others are the doorbells that are a record alone. They are inlined, so that these are the
// functions of which at least one must have each.
var others = map[string]string{
	"ringRecv of a queue pair": `\.(ringRecv|\(\*RecvQueue\)\.Publish|postRecvMlx5|\(\*QP\)\.PostRecv)$`,
	"ringRecv of an SRQ":       `\.(ringRecv|\(\*SharedRecvQueue\)\.Publish|\(\*SRQ\)\.postRecvs?Mlx5)$`,
	"ringIndex":                `\.(ringIndex|\(\*CompQueue\)\.Release|\(\*CQ\)\.pollMlx5)$`,
}

// checkDoorbells: the barriers are called in their order, and nothing locked stands between
// the first and the last of them, where device memory is written. A lock for a register that
// QPs share is taken before and given back behind.
func checkDoorbells(t *testing.T, arch string, all map[string]function) {
	t.Helper()
	for name, ways := range doorbells {
		f, ok := all[name]
		if !ok {
			t.Errorf("%s is not in the program", name)
			continue
		}
		bare := 0
		for _, steps := range ways {
			checkSteps(t, arch, name, f, steps)
			for _, step := range steps {
				if step == copied {
					bare++
				}
			}
		}
		n := 0
		for at := f.index(0, toRegister); at >= 0; at = f.index(at+1, toRegister) {
			n++
		}
		if n != bare {
			t.Errorf("%s writes to the device %d times without a barrier of the call's own, want %d:\n%s", name, n, bare, strings.Join(f, "\n"))
		}
	}
	checkRecords(t, all)
}

// checkSteps checks one way through a doorbell.
func checkSteps(t *testing.T, arch, name string, f function, steps []string) {
	t.Helper()
	first, at := -1, 0
	for _, step := range steps {
		i := f.index(at, step)
		if i < 0 {
			t.Errorf("%s has no %s behind what comes before it:\n%s", name, step, strings.Join(f, "\n"))
			break
		}
		if first < 0 && (step == fenced || strings.Contains(step, "StartWC")) {
			first = i
		}
		at = i + 1
	}
	if first < 0 {
		return
	}
	if function(f[first:at]).has(locked[arch]) {
		t.Errorf("%s has a locked operation where it writes to the device:\n%s", name, strings.Join(f, "\n"))
	}
	// A record that is stored behind the barrier would be seen by a device that has looked already.
	if f.index(first, recordStore) >= 0 {
		t.Errorf("%s stores the record behind the barrier:\n%s", name, strings.Join(f, "\n"))
	}
}

// stored matches an instruction that stores to memory other than the stack; reading ones that look
// alike are unordered.
var (
	stored    = regexp.MustCompile(`^(` + recordMark + `)?[A-Z0-9.]+ .*, [-x0-9a-f]*\((SI|DI|BP|[A-D]X|R[0-9]+)\)(\([A-Z0-9]+(\*\d)?\))?$`)
	unordered = regexp.MustCompile(`^(TEST|CMP)|^NOP`)
	called    = regexp.MustCompile(`^(CALL|BL) `)
	barrier   = regexp.MustCompile(callOf + `(` + toDevice + `)`)
	zeroed    = regexp.MustCompile(`^` + recordMark + `(XORL|MOVD ZR)`)
)

// fromDevice is a call of mmio.FromDevice or, on amd64, what it is there.
const fromDevice = `mmio\.FromDevice|mmio\.compilerBarrier`

// checkOwners: wherever the owner bit of a completion is loaded, in whatever function, a barrier
// stands behind it, before what the completion says is read.
func checkOwners(t *testing.T, all map[string]function) {
	t.Helper()
	load := regexp.MustCompile(`^` + ownerMark + `(LDARW|MOVL [-x0-9a-f]*\()`)
	read, efa := map[string]bool{}, false
	for name, f := range all {
		for i := range f {
			if !load.MatchString(f[i]) {
				continue
			}
			read[name[strings.LastIndex(name, ".")+1:]] = true
			efa = efa || strings.HasPrefix(name, "mmio/efa.")
			if f.index(i, callOf+`(`+fromDevice+`)`) < 0 {
				t.Errorf("%s loads an owner bit at instruction %d, and no barrier stands behind that:\n%s", name, i, strings.Join(f[i:], "\n"))
			}
		}
	}
	for _, name := range []string{"Avail", "Switch", "Sweep"} {
		if !read[name] {
			t.Errorf("%s does not load an owner bit any more", name)
		}
	}
	if !efa { // Look, which is inlined
		t.Error("no function of mmio/efa loads a phase bit")
	}
}

// checkRecords: wherever a record is stored, in whatever function, a barrier stands before it with
// no other store and no call between. ringArm, whose record says nothing of other memory, and
// records that are zeroed, whose queue the device does not look at, need none.
func checkRecords(t *testing.T, all map[string]function) {
	t.Helper()
	store := regexp.MustCompile(recordStore)
	var found []string
	for name, f := range all {
		if strings.HasSuffix(name, ".ringArm") {
			continue
		}
		for i := range f {
			if !store.MatchString(f[i]) || slices.ContainsFunc(f[max(i-24, 0):i], zeroed.MatchString) {
				continue
			}
			found = append(found, name)
			for j := i - 1; ; j-- {
				if j >= 0 && barrier.MatchString(f[j]) {
					break
				}
				if j < 0 || called.MatchString(f[j]) || stored.MatchString(f[j]) && !unordered.MatchString(f[j]) {
					t.Errorf("%s stores a record at instruction %d, and no barrier stands right before that:\n%s", name, i, strings.Join(f[max(j, 0):i+1], "\n"))
					break
				}
			}
		}
	}
	for what, where := range others {
		if !slices.ContainsFunc(found, regexp.MustCompile(where).MatchString) {
			t.Errorf("%s: no function has it, records are stored by %q", what, found)
		}
	}
}
