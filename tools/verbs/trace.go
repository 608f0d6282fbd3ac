package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/goverbs/goverbs/netlinkrdma"
	"github.com/goverbs/goverbs/tools/verbs/internal/command"
	"github.com/goverbs/goverbs/uverbs/trace"
)

// programStatus is the exit status of a program that was traced, which the command passes on.
type programStatus int

// Error implements error.
func (s programStatus) Error() string { return fmt.Sprintf("the program's exit status is %d", int(s)) }

// traceOutput are the flags that say what is printed.
type traceOutput struct {
	asJSON, summary, failed bool
	object                  string
}

func (o *traceOutput) flags(cmd *command.Command) {
	command.JSONFlag(cmd, &o.asJSON)
	f := cmd.Flags()
	f.BoolVar(&o.summary, "summary", false, "print a table of the commands with their errors and times instead of the calls")
	f.BoolVar(&o.failed, "failed", false, "print only calls that failed")
	f.StringVar(&o.object, "object", "", "print only calls about this `OBJECT`, such as \"QP 17\", or about all of a kind, such as QP")
}

// check fails if no event can be about the object of the flag --object.
func (o *traceOutput) check() error {
	kind := o.object
	if i := strings.LastIndexByte(kind, ' '); i >= 0 {
		if _, err := strconv.ParseUint(kind[i+1:], 10, 32); err == nil {
			kind = kind[:i]
		}
	}
	all := trace.Kinds()
	if kind == "" && o.object == "" || slices.ContainsFunc(all, func(k string) bool { return strings.EqualFold(k, kind) }) {
		return nil
	}
	return command.Usagef("--object is %q, allowed: one of these, and perhaps a number: %s", o.object, strings.Join(all, ", "))
}

func newTrace() *command.Command {
	var out traceOutput
	var record recordFile
	var pid int
	cmd := &command.Command{
		Use:   "trace [flags] -- PROGRAM [ARGUMENT...]",
		Short: "Show what a program does with RDMA devices, call by call",
		Long: `It runs a program and prints, on standard error, every call that the program, its threads and its
children make to the files in /dev/infiniband: the commands with their attributes and the driver's
part, the memory of the device that is mapped, and events. Objects have their numbers, and what the
kernel answers follows "->". Fields with the value 0 are omitted; --json prints them. Doorbells (the
commands that rxe and siw need for each message) are counted, and their number is printed when the
object is destroyed. Values that the kernel's headers do not name are printed as bytes.

Any program can be traced that runs on this processor in 64-bit mode: in C on rdma-core, in Go, in
Python. System calls that have nothing to do with it run at full speed, and so does a program that
works with the queues of a card. --pid attaches to a process that runs, which then stops at every
system call; an interrupt ends the trace and lets the process go on.`,
		Example: `  verbs trace -- ibv_devinfo -d rxe0
  verbs trace --object QP -- ibv_rc_pingpong -d rxe0 -g 1 server
  verbs trace -o record -- rping -s       # write a record
  verbs trace show record --failed        # print it
  verbs trace --summary --pid 4711`,
		Exit: "  0  success, by the program's exit status; another is passed on, and is 128+N if signal N killed it\n  1  failure of the trace, too; standard error has the reason",
		Args: func(_ *command.Command, args []string) error {
			switch {
			case (len(args) == 0) == (pid == 0):
				return command.Usagef("the arguments of verbs trace are a program or --pid; \"verbs trace --help\" shows both")
			case pid < 0:
				return command.Usagef("--pid is %d, allowed: 1 and more", pid)
			}
			return nil
		},
		Run: func(cmd *command.Command, args []string) error {
			if err := out.check(); err != nil {
				return err
			}
			return runTrace(cmd, args, pid, &record, out)
		},
	}
	cmd.Flags().SetInterspersed(false) // the program's flags are not ours
	out.flags(cmd)
	record.flags(cmd, "output", "o", "write a record of the calls to this `FILE`, which only its owner can read, instead of printing them")
	cmd.Flags().IntVarP(&pid, "pid", "p", 0, "attach to the process with this `PID`")
	cmd.Add(newTraceShow())
	return cmd
}

func newTraceShow() *command.Command {
	var out traceOutput
	cmd := &command.Command{
		Use:   "show [flags] FILE",
		Short: "Print a record of \"verbs trace -o\"",
		Example: `  verbs trace show record
  verbs trace show record --json | jq 'select(.errno)'`,
		Args: func(_ *command.Command, args []string) error {
			if len(args) != 1 {
				return command.Usagef("the number of arguments of verbs trace show is %d, allowed: 1", len(args))
			}
			return nil
		},
		Run: func(cmd *command.Command, args []string) error {
			if err := out.check(); err != nil {
				return err
			}
			f, err := cmd.Open(args[0])
			if err != nil {
				return err
			}
			defer f.Close()
			if err := showRecord(f, newTracePrinter(cmd.Out(), out)); err != nil {
				return fmt.Errorf("%s: %w", args[0], err)
			}
			return nil
		},
	}
	out.flags(cmd)
	return cmd
}

// showRecord prints a record. Of one that was cut it prints what there is.
func showRecord(r io.Reader, p *tracePrinter) error {
	rd, err := trace.NewReader(r)
	if err != nil {
		return err
	}
	for {
		c, err := rd.Next()
		if err != nil {
			if errors.Is(err, io.EOF) {
				err = nil
			}
			return errors.Join(err, p.end())
		}
		if err := p.add(c); err != nil {
			return err
		}
	}
}

// tracePrinter prints calls. It is safe for concurrent use.
type tracePrinter struct {
	mu      sync.Mutex
	w       io.Writer
	out     traceOutput
	decoder *trace.Decoder
	summary trace.Summary
	ended   bool
}

func newTracePrinter(w io.Writer, out traceOutput) *tracePrinter {
	return &tracePrinter{w: w, out: out, decoder: trace.NewDecoder()}
}

// add prints a call.
func (p *tracePrinter) add(c *trace.Call) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.ended {
		return nil
	}
	return p.print(p.decoder.Decode(c))
}

func (p *tracePrinter) print(e *trace.Event) error {
	switch {
	case p.out.failed && e.Call.Errno == "", !p.selects(e):
		return nil
	case p.out.summary:
		p.summary.Add(e)
		return nil
	case p.out.asJSON:
		b, err := e.JSON()
		if err != nil {
			return err
		}
		_, err = p.w.Write(append(b, '\n'))
		return err
	case e.Doorbell && e.Call.Errno == "":
		return nil
	}
	_, err := fmt.Fprintln(p.w, e.Text())
	return err
}

// selects reports whether an event is about the objects of the flag --object. "QP 17 sq" is a part of "QP 17".
func (p *tracePrinter) selects(e *trace.Event) bool {
	want := p.out.object
	if want == "" || strings.EqualFold(want, e.Kind) {
		return true
	}
	object := e.Object
	if i := strings.LastIndexByte(object, ' '); i >= 0 && strings.Trim(object[i+1:], "0123456789") != "" {
		object = object[:i]
	}
	return strings.EqualFold(want, object)
}

// end prints what is left at the end.
func (p *tracePrinter) end() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.ended {
		return nil
	}
	p.ended = true
	if p.out.summary {
		if !p.out.asJSON {
			return p.summary.Print(p.w)
		}
		return json.NewEncoder(p.w).Encode(p.summary.Rows())
	}
	for _, e := range p.decoder.Finish() {
		if err := p.print(e); err != nil {
			return err
		}
	}
	return nil
}

// runTrace runs a program, or attaches to a process, and prints or records its calls.
func runTrace(cmd *command.Command, args []string, pid int, record *recordFile, out traceOutput) error {
	warn := func(format string, args ...any) { fmt.Fprintf(cmd.Err(), "verbs: "+format+"\n", args...) }
	if pid == 0 && os.Getenv("GOVERBS_SOFT") != "" {
		warn("with GOVERBS_SOFT the program has software devices, which ask nothing of the kernel: their fields trace=FILE and capture=FILE record packets")
	}
	printer := newTracePrinter(cmd.Err(), out)
	sink := func(c *trace.Call) { printer.add(c) }
	end := func(int) error { return printer.end() }
	f, err := record.create()
	if err != nil {
		return err
	}
	if f != nil {
		defer f.Close()
		var u unix.Utsname
		if err := unix.Uname(&u); err != nil {
			return err
		}
		r := trace.NewRecorder(f, trace.Header{Kernel: unix.ByteSliceToString(u.Release[:]), Arch: runtime.GOARCH, Program: args, PID: pid})
		sink, end = r.Add, r.End
	}
	t := &trace.Tracer{Sink: sink, Warn: warn, DriverOf: driverFinder()}
	type result struct {
		status int
		err    error
	}
	done := make(chan result, 1)
	go func() {
		var r result
		if pid != 0 {
			r.status, r.err = t.Attach(pid)
		} else {
			r.status, r.err = t.Run(args, passTermination)
		}
		done <- r
	}()
	detach := context.Background()
	if pid != 0 { // an interrupt lets the process go on; a program that was started has it itself
		detach = cmd.Context()
	}
	select {
	case r := <-done:
		if err := errors.Join(r.err, end(r.status)); err != nil {
			return err
		}
		if r.status != 0 {
			return programStatus(r.status)
		}
	case <-detach.Done(): // the end of this process detaches
		return end(0)
	}
	return nil
}

// passTermination passes the signal that ends this process on to the program. An interrupt from the
// terminal reaches both, and ends the program alone.
func passTermination(pid int) {
	c := make(chan os.Signal, 1)
	signal.Notify(c, syscall.SIGTERM)
	signal.Notify(make(chan os.Signal, 1), os.Interrupt)
	go func() {
		for range c {
			syscall.Kill(pid, syscall.SIGTERM)
		}
	}()
}

// driverFinder returns a function that finds the device and the driver's number of a character
// device.
func driverFinder() func(string) (string, uint32) {
	type found struct {
		device string
		driver uint32
	}
	known := map[string]found{}
	return func(file string) (string, uint32) {
		if f, ok := known[file]; ok {
			return f.device, f.driver
		}
		devices, _ := netlinkrdma.Devices() // without them, the driver's part is shown as bytes
		for _, d := range devices {
			if cd, err := netlinkrdma.UverbsDev(d); err == nil {
				known[cd.Name] = found{d.Name, uint32(cd.DriverID)}
			}
		}
		return known[file].device, known[file].driver
	}
}
