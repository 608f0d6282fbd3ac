//go:build linux

package trace

import (
	"bytes"
	"debug/elf"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/goverbs/goverbs/test/testenv"
)

// program32 writes a 32-bit program. It gives the call that in 64-bit mode is openat(AT_FDCWD,
// "/dev/infiniband/rdma_cm", 0), and in 32-bit mode remap_file_pages with arguments that are not valid, and
// ends with the status 7.
func program32(t *testing.T) string {
	t.Helper()
	const base, heads, path = 0x08048000, 52 + 32, "/dev/infiniband/rdma_cm\x00"
	le := binary.LittleEndian
	code := le.AppendUint32([]byte{0xb8}, unix.SYS_OPENAT)  // mov eax, the call
	code = append(code, 0xbb, 0x9c, 0xff, 0xff, 0xff, 0xb9) // mov ebx, AT_FDCWD; mov ecx, ...
	code = le.AppendUint32(code, base+heads+33)             // the path
	code = append(code, 0x31, 0xd2, 0x31, 0xf6, 0xcd, 0x80) // xor edx, edx; xor esi, esi; int 0x80
	code = append(code, 0xb8, 1, 0, 0, 0, 0xbb, 7, 0, 0, 0) // mov eax, exit; mov ebx, 7
	code = append(append(code, 0xcd, 0x80), path...)        // int 0x80
	size := uint32(heads + len(code))
	var b bytes.Buffer
	err := errors.Join(
		binary.Write(&b, le, elf.Header32{
			Ident: [elf.EI_NIDENT]byte{0x7f, 'E', 'L', 'F', byte(elf.ELFCLASS32), byte(elf.ELFDATA2LSB), byte(elf.EV_CURRENT)},
			Type:  uint16(elf.ET_EXEC), Machine: uint16(elf.EM_386), Version: uint32(elf.EV_CURRENT),
			Entry: base + heads, Phoff: 52, Ehsize: 52, Phentsize: 32, Phnum: 1,
		}),
		binary.Write(&b, le, elf.Prog32{
			Type: uint32(elf.PT_LOAD), Vaddr: base, Paddr: base, Filesz: size, Memsz: size, Flags: uint32(elf.PF_R | elf.PF_X), Align: 0x1000,
		}))
	b.Write(code)
	file := filepath.Join(t.TempDir(), "program32")
	must(t, errors.Join(err, os.WriteFile(file, b.Bytes(), 0o755)))
	cmd := exec.Command(file)
	if err := cmd.Run(); cmd.ProcessState == nil || cmd.ProcessState.ExitCode() != 7 {
		t.Fatalf("the program without a trace: %v", err)
	}
	return file
}

// env32 has the 32-bit program that the Go program of Test32Bit is to run.
const env32 = "TRACE_TEST_32BIT"

// Test32Bit: a 32-bit program that a traced program runs, as a child and then in its own place, runs as
// without the trace, and a warning says that it is not traced.
func Test32Bit(t *testing.T) {
	if file := os.Getenv(env32); file != "" {
		run32(file)
	}
	testenv.Guest(t) // other kernels may be built or told to run no 32-bit programs
	file := program32(t)
	script := file + "; test $? = 7 && exec " + file
	self, err := os.Executable()
	must(t, err)
	for name, run := range map[string]func(*Tracer) (int, error){
		"shell": func(tr *Tracer) (int, error) {
			return tr.Run([]string{"sh", "-c", script}, nil)
		},
		"Go": func(tr *Tracer) (int, error) {
			t.Setenv(env32, file)
			defer os.Unsetenv(env32)
			return tr.Run([]string{self, "-test.run", "^Test32Bit$"}, nil)
		},
		"attach": func(tr *Tracer) (int, error) {
			cmd := exec.Command("sh", "-c", "read x; "+script)
			in, err := cmd.StdinPipe()
			if err != nil {
				return 0, err
			}
			if err := cmd.Start(); err != nil {
				return 0, err
			}
			go func() {
				for strings.Contains(processStatus(cmd.Process.Pid), "TracerPid:\t0") {
					time.Sleep(time.Millisecond)
				}
				in.Close()
			}()
			return tr.Attach(cmd.Process.Pid)
		},
	} {
		tr, calls := newTestTracer(t)
		var warnings []string
		tr.Warn = func(format string, args ...any) { warnings = append(warnings, fmt.Sprintf(format, args...)) }
		status, err := run(tr)
		if err != nil || status != 7 {
			t.Errorf("%s: status %d, want 7, %v", name, status, err)
		}
		var want []string
		runs, ends := map[int]bool{}, 0 // the processes that run it
		for _, c := range *calls {
			switch {
			case c.Call == CallExec && c.Text == file:
				want = append(want, fmt.Sprintf("process %d runs %q, a 32-bit program, which is not traced", c.PID, file))
				runs[c.PID] = true
			case c.Call == CallExit && runs[c.PID] && c.Result == 7:
				ends++
			case runs[c.PID], c.Call != CallExec && c.Call != CallExit:
				t.Errorf("%s: %+v", name, c)
			}
		}
		if len(want) != 2 || ends != 2 || !slices.Equal(warnings, want) {
			t.Errorf("%s: %d ends, want 2, warnings %q, want %q", name, ends, warnings, want)
		}
	}
}

// run32 runs a program as a child and then in the place of this one.
func run32(file string) {
	cmd := exec.Command(file)
	cmd.Run()
	if code := cmd.ProcessState.ExitCode(); code != 7 {
		os.Exit(100)
	}
	syscall.Exec(file, []string{file}, os.Environ())
	os.Exit(101)
}
