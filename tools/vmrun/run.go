package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"syscall"

	"github.com/goverbs/goverbs/tools/vmrun/internal/apt"
	"github.com/goverbs/goverbs/tools/vmrun/internal/kernel"
	"github.com/goverbs/goverbs/tools/vmrun/internal/klog"
	"github.com/goverbs/goverbs/tools/vmrun/internal/qemu"
)

// Exit statuses of vmrun's own. A program's status passes through, and a program
// that a signal killed gives 128 and the signal's number, as in a shell.
const (
	statusTimeout = 124 // the time was up
	statusFailure = 125 // vmrun could not do its work
	statusKernel  = 126 // the programs are well, the kernel complained
	statusSignal  = 128
)

var errMute = fmt.Errorf("the guest said nothing under KVM for %v", kvmTimeout)

// app is vmrun with its command line understood.
type app struct {
	options
	store  *apt.Store
	stderr io.Writer
	prefix string // what messages begin with
}

func (a *app) logf(format string, args ...any) {
	if a.verbose {
		a.sayf(format, args...)
	}
}

func (a *app) sayf(format string, args ...any) {
	fmt.Fprintf(a.stderr, "vmrun: %s%s\n", a.prefix, strings.TrimRight(fmt.Sprintf(format, args...), "\n"))
}

// run boots the guest, runs the programs and gives the exit status.
func (a *app) run(ctx context.Context, args []string) (int, error) {
	hosts, err := splitHosts(args, a.hosts)
	if err != nil {
		return 0, err
	}
	k, err := a.findKernel(ctx)
	if err != nil {
		return 0, err
	}
	find := qemu.Find
	if a.cards() > 0 {
		find = qemu.FindVFIO
	}
	p, err := find(ctx, a.store, a.arch, a.qemu)
	if err != nil {
		return 0, err
	}
	if len(hosts) > 1 {
		if err := p.CheckLink(ctx); err != nil {
			return 0, err
		}
	}
	if err := a.drawPersonality(ctx); err != nil {
		return 0, err
	}
	im, err := a.buildImage(ctx, k, hosts)
	if err != nil {
		return 0, err
	}
	defer im.file.Close()
	mem, err := a.memMiB()
	if err != nil {
		return 0, err
	}
	o := qemu.Options{
		Arch: a.arch, CPUs: a.cpus, MemMiB: mem, Initrd: im.file,
		Append: a.append, Extra: a.qemuArgs, ICount: a.icount,
	}
	accels := a.accels()
	for n, accel := range accels {
		o.Accel, o.Kernel = accel, k.Image
		if a.arch == "amd64" && accel == "tcg" && n == 0 {
			if name, err := k.Unpacked(); err != nil {
				a.logf("the kernel unpacks itself: %v", err)
			} else {
				o.Kernel = name
			}
		}
		all, err := a.sessions(im)
		if err != nil {
			return 0, err
		}
		m, err := a.startModel(len(all))
		if err != nil {
			return 0, err
		}
		for i, s := range all {
			s.cards = m.endsOf(i, len(all))
		}
		a.logf("booting %s with %s", o.Kernel, accel)
		if err := a.bootAll(ctx, p, o, all); err != nil {
			m.kill()
			return 0, err
		}
		if i := slices.IndexFunc(all, (*session).stillborn); i >= 0 && n < len(accels)-1 {
			m.kill()
			a.sayf("the guest did not come up with %s (%v); trying again with %s", accel, all[i].noLife(), accels[n+1])
			continue
		}
		status, err := a.judge(ctx, all)
		if err != nil {
			m.kill()
			return 0, err
		}
		return m.finish(status)
	}
	panic("unreachable: the last accelerator is never skipped")
}

// stillborn reports whether nothing was ever heard of the guest.
func (s *session) stillborn() bool {
	return s.release == "" && (s.end == mute || s.end == machineGone)
}

// noLife says why nothing was heard of the guest.
func (s *session) noLife() error {
	if s.end == machineGone {
		return cmp.Or(s.qemuErr, errors.New("its kernel gave up"))
	}
	return errMute
}

// accels gives what to try, in turn, while nothing is heard of the guest. Under emulation Debian's
// kernels are given a second chance: now and then 7.2 trips over its own patching of code at boot
// (an int3 in enqueue_task_fair). A kernel of the user's is to show what it does.
func (a *app) accels() []string {
	if a.accel != "auto" {
		return []string{a.accel}
	}
	ok, why := qemu.KVM(a.arch)
	switch {
	case ok:
		return []string{"kvm", "tcg"}
	case isPath(a.kernel):
		a.logf("no KVM: %s", why)
		return []string{"tcg"}
	}
	a.logf("no KVM: %s", why)
	return []string{"tcg", "tcg"}
}

func (a *app) findKernel(ctx context.Context) (*kernel.Kernel, error) {
	if isPath(a.kernel) {
		return kernel.Local(a.kernel, a.modules, a.arch)
	}
	k, err := kernel.Fetch(ctx, a.store, a.kernel, a.arch)
	if errors.Is(err, apt.ErrNoApt) || errors.Is(err, apt.ErrNoArchive) {
		return nil, fmt.Errorf("%w: use -kernel PATH -modules DIR with a kernel of your own", err)
	}
	return k, err
}

// verdict turns what came of a boot into messages and an exit status.
func (a *app) verdict(ctx context.Context, s *session) (int, error) {
	if s.end != ended && s.end != interrupted {
		// The console has what init could not send any more.
		judgeConsole(s)
	}
	complaints := a.printReports(s.judge.Reports())
	if s.memoryTooSmall() {
		a.sayf("the guest's memory of %s is too small for its programs and packages, which it holds in memory: try a larger -mem", a.mem)
	}
	status := 0
	for _, e := range s.exits {
		if e.Error != "" {
			a.sayf("%s", e.Error)
			e.Status = statusFailure
		}
		if e.Signal != 0 {
			e.Status = statusSignal + e.Signal
		}
		if status == 0 {
			status = e.Status
		}
	}
	switch s.end {
	case interrupted:
		return interruptStatus(ctx), nil
	case timedOut:
		a.printTail(s)
		a.sayf("timeout: %s after %v; the last lines of the kernel's log and console are above", where(s), a.timeout)
		return statusTimeout, nil
	case peerFailed:
		a.sayf("stopped because another host failed, %s", where(s))
		if complaints > 0 {
			return statusKernel, nil
		}
		return status, nil
	case initFailed:
		a.printTail(s)
		return 0, fmt.Errorf("guest: %s", s.fatal)
	case mute:
		return 0, fmt.Errorf("%w: try -accel tcg", errMute)
	case machineGone, oopsed:
		if complaints == 0 {
			a.printTail(s)
			if s.qemuErr != nil {
				return 0, s.qemuErr
			}
			return 0, fmt.Errorf("the machine was switched off from inside, %s", where(s))
		}
		a.sayf("the kernel gave up, %s", where(s))
		if status == 0 {
			status = statusKernel
		}
		return status, nil
	}
	if s.fetchErr != nil {
		return 0, fmt.Errorf("files from the guest: %w", s.fetchErr)
	}
	if complaints > 0 && status == 0 {
		status = statusKernel
	}
	return status, nil
}

// memoryTooSmall reports whether the kernel had no memory left, for the files that it starts with or later.
func (s *session) memoryTooSmall() bool {
	return slices.ContainsFunc(slices.Concat(s.console.last(2*keptLines), s.kernlog.last(2*keptLines)), func(line string) bool {
		return strings.Contains(line, "Initramfs unpacking failed: write error") || strings.Contains(line, "Out of memory: ") || strings.Contains(line, "System is deadlocked on memory")
	})
}

// where says how far the programs had come.
func where(s *session) string {
	switch {
	case s.release == "":
		return "before the guest's init was heard of"
	case s.running == 0:
		return "before the program was started"
	case len(s.exits) < s.running:
		return fmt.Sprintf("while program %d of %d ran", s.running, s.nprogs)
	}
	return "after the programs had ended"
}

// judgeConsole adds what stands on the console and not in the log that init sent.
func judgeConsole(s *session) {
	c := klog.NewJudge(klog.KnownBugs())
	c.SetRelease(s.release)
	for _, line := range s.console.last(2 * keptLines) {
		c.Console(line)
	}
	s.judge.Merge(c)
}

// printReports prints the kernel's complaints and counts those that are not on
// the list of known bugs.
func (a *app) printReports(reports []*klog.Report) int {
	unknown := 0
	for _, r := range reports {
		if r.Known != nil {
			a.sayf("known kernel bug, does not count: %s\nvmrun:   cause: %s", r.Headline, r.Known.Cause)
			continue
		}
		unknown++
		a.sayf("the kernel complained:")
		for _, line := range r.Lines {
			fmt.Fprintf(a.stderr, "    %s\n", line)
		}
	}
	if unknown > 0 {
		a.sayf("failed: %d complaint(s) of the kernel", unknown)
	}
	return unknown
}

// printTail prints the end of the kernel's log and of the console.
func (a *app) printTail(s *session) {
	for _, t := range []struct {
		what  string
		lines []string
	}{{"the kernel's log", s.kernlog.last(30)}, {"the console", s.console.last(40)}} {
		if len(t.lines) == 0 || a.verbose {
			continue
		}
		a.sayf("last lines of %s:", t.what)
		for _, line := range t.lines {
			fmt.Fprintf(a.stderr, "    %s\n", line)
		}
	}
}

// signalled is the cause of a context that a signal ended.
type signalled struct{ sig syscall.Signal }

func (s signalled) Error() string { return s.sig.String() }

func interruptStatus(ctx context.Context) int {
	var s signalled
	if errors.As(context.Cause(ctx), &s) {
		return statusSignal + int(s.sig)
	}
	return statusFailure
}
