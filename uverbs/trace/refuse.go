//go:build linux

package trace

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"

	"golang.org/x/sys/unix"
)

// Classes of ELF files.
const elf32 = 1

// elfClass returns the class of an ELF file, 0 for another file.
func elfClass(path string) byte {
	f, err := os.Open(path)
	if err != nil {
		return 0
	}
	defer f.Close()
	var head [5]byte
	if _, err := f.ReadAt(head[:], 0); err != nil || string(head[:4]) != "\x7fELF" {
		return 0
	}
	return head[4]
}

// traceable returns an error that says why a program cannot be traced.
func traceable(path string) error {
	if elfClass(path) == elf32 {
		return fmt.Errorf("%s is a 32-bit program: only 64-bit programs can be traced", path)
	}
	var st unix.Stat_t
	if err := unix.Stat(path, &st); err != nil {
		return &fs.PathError{Op: "stat", Path: path, Err: err}
	}
	euid := uint32(os.Geteuid())
	_, err := unix.Getxattr(path, "security.capability", nil)
	switch {
	case euid == 0:
	case st.Mode&unix.S_ISUID != 0 && st.Uid != euid:
		return fmt.Errorf("%s is set-user-ID to user %d, a right that it does not get while it is traced: trace it as root, or run the trace as that user", path, st.Uid)
	case err == nil:
		return fmt.Errorf("%s has file capabilities, which it does not get while it is traced: trace it as root", path)
	}
	return nil
}

// traceableProcess returns an error that says why a process cannot be traced.
func traceableProcess(pid int) error {
	if elfClass(fmt.Sprintf("/proc/%d/exe", pid)) == elf32 {
		return fmt.Errorf("process %d is a 32-bit program: only 64-bit programs can be traced", pid)
	}
	return nil
}

// refusal explains why the kernel refuses to trace a process.
func refusal(pid int, err error) error {
	if errors.Is(err, unix.ESRCH) {
		return fmt.Errorf("there is no process %d", pid)
	}
	if !errors.Is(err, unix.EPERM) {
		return fmt.Errorf("trace process %d: %w", pid, err)
	}
	err = fmt.Errorf("trace process %d: %w", pid, err)
	if status, _ := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid)); status != nil {
		for line := range strings.Lines(string(status)) {
			if v, ok := strings.CutPrefix(line, "TracerPid:"); ok && strings.TrimSpace(v) != "0" {
				return fmt.Errorf("%w: process %s traces it already", err, strings.TrimSpace(v))
			}
		}
	}
	b, _ := os.ReadFile(yama)
	return fmt.Errorf("%w: %s", err, cause(strings.TrimSpace(string(b))))
}

// yama is the file of the security module Yama that says who may trace whom.
const yama = "/proc/sys/kernel/yama/ptrace_scope"

// cause returns why tracing is not permitted, by what yama says.
func cause(scope string) string {
	switch scope {
	case "1":
		return yama + " is 1, so a process can be traced only by one that started it: start it with \"verbs trace -- PROGRAM\", be root, or have root run \"sysctl kernel.yama.ptrace_scope=0\""
	case "2":
		return yama + " is 2, so only root may trace"
	case "3":
		return yama + " is 3, so nobody may trace until the next boot"
	}
	return "it is another user's, or a sandbox forbids ptrace (in a container: --cap-add SYS_PTRACE)"
}
