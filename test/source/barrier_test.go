package source

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// A function's instructions as go tool objdump prints them, without addresses.
type function []string

// disassemble builds the verbs command for an architecture and returns the functions of the
// packages with barriers and doorbells.
func disassemble(t *testing.T, arch string) map[string]function {
	t.Helper()
	exe := filepath.Join(t.TempDir(), "verbs")
	build := exec.Command("go", "build", "-o", exe, "./tools/verbs")
	build.Dir = root
	build.Env = append(os.Environ(), "GOARCH="+arch, "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("go build: %v\n%s", err, out)
	}
	out, err := exec.Command("go", "tool", "objdump", "-s", `goverbs/mmio(/mlx5)?\.|uverbs\.\(\*(QP|CQ)\)\.(publishRxe|Poll)$`, exe).Output()
	if err != nil {
		t.Fatalf("go tool objdump: %v", err)
	}
	line := regexp.MustCompile(`^\s+\S+:\d+\s+0x[0-9a-f]+\s+[0-9a-f]+\s+(.*?)\s*$`)
	all := map[string]function{}
	var name string
	for l := range strings.Lines(string(out)) {
		if rest, ok := strings.CutPrefix(l, "TEXT "); ok {
			name, _, _ = strings.Cut(rest, "(SB)")
			name = strings.TrimSuffix(strings.TrimPrefix(name, module+"/"), ".abi0")
		} else if m := line.FindStringSubmatch(l); m != nil {
			all[name] = append(all[name], m[1])
		}
	}
	if len(all) < 20 {
		t.Fatalf("only %d functions of mmio are in the command", len(all))
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

// TestBarrierInstructions: each barrier is the instruction that it must be in the command as
// built, and what touches device memory is stores and loads and nothing else.
func TestBarrierInstructions(t *testing.T) {
	for arch, want := range map[string]map[string][]string{
		"amd64": {
			"mmio.StartWC": {`^SFENCE`},
			"mmio.FlushWC": {`^SFENCE`},
			"mmio.Store64": {`^MOVQ AX, 0\(DI\)`},
			// Where an index of a ring is stored: a load that is atomic for the compiler, and a store.
			"uverbs.(*QP).publishRxe": {`^MOVL 0\(R?([A-D]X|SI|DI|[0-9]+)\), `, `^MOVL .*, 0\(R?([A-D]X|SI|DI|[0-9]+)\)`, `^CALL`},
			"uverbs.(*CQ).Poll":       {`^MOVL 0\(R?([A-D]X|SI|DI|[0-9]+)\), `, `^MOVL .*, 0\(R?([A-D]X|SI|DI|[0-9]+)\)`},
			"mmio.Copy64":             {`^MOVDQU X0, 0\(DI\)`, `^MOVDQU X1, 0x10\(DI\)`, `^MOVDQU X2, 0x20\(DI\)`, `^MOVDQU X3, 0x30\(DI\)`},
		},
		"arm64": {
			"mmio.ToDevice":   {`^DMB \$2`},
			"mmio.FromDevice": {`^DMB \$1`},
			"mmio.StartWC":    {`^DSB \$14`},
			"mmio.FlushWC":    {`^DSB \$14`},
			"mmio.Store64":    {`^MOVD R1, \(R0\)`},
			"mmio.Copy64":     {`^VST1 \[V0.D2, V1.D2, V2.D2, V3.D2\], \(R0\)`},
		},
	} {
		t.Run(arch, func(t *testing.T) {
			all := disassemble(t, arch)
			for name, patterns := range want {
				f, ok := all[name]
				if !ok {
					t.Errorf("%s is not in the command", name)
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
		})
	}
}

// toDevice is a call of mmio.ToDevice or, on amd64, what it is there: nothing but a load that
// stops the compiler.
const toDevice = `mmio\.ToDevice|mmio\.still`

// doorbells are the functions that ring, with what they must call in which order.
var doorbells = map[string][]string{
	"mmio/mlx5.(*SendQueue).ringSend":  {toDevice, "mmio.StartWC", "mmio.Store64|mmio.Copy64|blueFlame", "mmio.FlushWC"},
	"mmio/mlx5.(*SendQueue).blueFlame": {"mmio.Copy64"},
	"mmio/mlx5.ringRecv":               {toDevice},
	"mmio/mlx5.(*CompQueue).ringArm":   {"mmio.StartWC", "mmio.Store64", "mmio.FlushWC"},
	"mmio/mlx5.(*CompQueue).ringIndex": {toDevice},
}

// checkDoorbells: the barriers are called in their order, and nothing locked stands between
// the first and the last of them, where device memory is written. A lock for a register that
// QPs share is taken before and given back behind.
func checkDoorbells(t *testing.T, arch string, all map[string]function) {
	t.Helper()
	seen := 0
	for name, calls := range doorbells {
		f, ok := all[name]
		if !ok {
			continue // it was inlined where it is used
		}
		seen++
		first, at := -1, 0
		for _, c := range calls {
			i := f.index(at, `^(CALL|JMP|B|MOVL) .*(`+c+`)`)
			if i < 0 {
				t.Errorf("%s does not call %s behind the ones before it:\n%s", name, c, strings.Join(f, "\n"))
				return
			}
			if strings.Contains(c, "StartWC") {
				first = i
			}
			at = i + 1
		}
		if first >= 0 && function(f[first:at]).has(locked[arch]) {
			t.Errorf("%s has a locked operation where it writes to the device:\n%s", name, strings.Join(f, "\n"))
		}
	}
	if seen < 2 {
		t.Errorf("only %d functions that ring a doorbell are in the command", seen)
	}
}
