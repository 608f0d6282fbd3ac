package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/goverbs/goverbs/tools/vmrun/internal/apt"
	"github.com/goverbs/goverbs/tools/vmrun/internal/cache"
	"github.com/goverbs/goverbs/tools/vmrun/internal/kernel"
	"github.com/goverbs/goverbs/tools/vmrun/internal/progress"
	"github.com/goverbs/goverbs/tools/vmrun/internal/qemu"
)

const long = `vmrun boots a Linux kernel in QEMU and runs a program, or several, as processes
in it. Standard input, output, error and the exit status are the program's. So
it serves go test as well:

    go test -exec "vmrun -kernel 6.1" ./...

Kernel and, if it is not installed, QEMU come from the Debian archive that this
system's apt sources name, and are kept in the user's cache directory; nothing
is installed and no rights are needed.

The guest has the program at the same path as here, the same working directory
with a copy of its testdata, and by default a veth pair, ve0 (10.1.0.1/24,
fd00:1::1/64) and ve1 (10.1.0.2/24, fd00:1::2/64), with the RDMA devices rxe0
and rxe1 on them. A program is looked for in the guest first (see -with), by its
name or its path there, and then here. "---" alone separates programs, which run
in turn; the status is the first that is not 0.

With -hosts 2 there are two guests, joined by an Ethernet link: eth0 and rxe0 in
each, 10.2.0.1/24 and fd02::1/64 in host 1, 10.2.0.2/24 and fd02::2/64 in host 2.
"+++" alone separates the programs of host 1 from those of host 2; without it both
run the same. VMRUN_HOST is 1 or 2 and VMRUN_PEER is the other's IPv4 address. The
programs start when both hosts are up and have heard of each other. Lines come out
behind "1: " or "2: ", standard input is host 1's, and of a file that comes back from
both the name of host 2's ends in ".2". When the programs of one host have failed, the
other is stopped 5 s later. The status is the first that is not 0, host 1's before
host 2's; that of a host which was stopped counts last. On a machine with fewer than
four processors, -cpus 1 makes the link faster.

With -device mlx5 the devices are ConnectX-5 cards, played by the program hca: mlx5_0
and mlx5_1, or mlx5_0 in each of two hosts, all on one fabric. On Ethernet (mode=roce)
their network devices have the addresses above, with two hosts in place of eth0 and
joined by nothing else; on InfiniBand (mode=ib) 10.1.0.1 and 10.1.0.2 are addresses of
the loopback device. When the programs have ended, what the cards saw is printed.
With personality=NAME the cards differ from the usual ones in registers, capabilities
and behavior: "hca -help" lists the names; a number is a seed from which one is drawn,
and "random" draws the seed too. The seed and the differences are printed at the start,
and programs find them in VMRUN_PERSONALITY.

With -device siw the devices are soft iWARP, siw0 and siw1 in place of rxe0 and rxe1. No
kernel of Debian's has that driver: it is built from Debian's own source of the kernel
with this machine's gcc and make, once for each kernel, in less than a minute.

Kinds of devices can be had together in one machine, as in -device rxe+siw+mlx5. The
first has the addresses above; the second has ve2 and ve3 (10.1.1.1/24, fd00:2::1/64 and
10.1.1.2/24, fd00:2::2/64), the third the next ones, or a card's network devices them.

With -icount what a program measures is how much is executed, the kernel's part
included, and not how fast: the same on a busy machine as on a quiet one, and the same
for memory that is near as for memory that is far. While the guest waits its clock goes
on to what it waits for at once. It has one processor then, without KVM.

-loss, -delay and -reorder make the link bad from the start, with two hosts as well
as between ve0 and ve1. While it runs, a program can do that itself, and cut the link:

    vmlink [DEVICE] down
    vmlink [DEVICE] up
    vmlink [DEVICE] netem [loss P%] [delay TIME] [reorder P%]
    vmlink [DEVICE] netem off

It is about what a device sends, eth0 with two hosts and ve0 with one unless another
is named. "down" is an error of the port at this end and silence at the other; "netem
loss 100%" is silence on a port that stays active. The packets of the cards of -device
mlx5 do not pass through the kernel: -loss and -delay are about their fabric, and vmlink's
netem does not reach it.

Flags may be written with one dash or two. What stands on the list of known
kernel bugs is printed with its cause, and does not count.

Exit status: the program's, or 128 and the number of the signal that killed it;
  123  the program is well, but a driver did to a modelled card what it must not
  124  the time was up; the end of the kernel's log and console is printed
  125  vmrun could not do its work
  126  the program is well, but the kernel complained (oops, warning, hung task,
       lockdep report, ...) about what is not on the list of known kernel bugs`

const examples = `  vmrun ./prog arg                         run a static binary on Debian's 6.1
  go test -exec "vmrun -kernel 5.10" ./... the same for tests
  vmrun -kernel latest -arch arm64 ./prog  another kernel, another architecture
  vmrun -with ibverbs-utils,ibverbs-providers ibv_devinfo
  vmrun -with iproute2,dash sh -c 'rdma link; ip address'
  vmrun ./a --- ./b                        two programs in one boot
  vmrun -device mlx5,mode=ib,personality=random ./prog
  vmrun -device siw -with ibverbs-utils,ibverbs-providers ibv_devinfo
  vmrun -hosts 2 ./server +++ ./client 10.2.0.1
  vmrun -kernel ~/linux/arch/x86/boot/bzImage -modules ~/linux/mods ./prog
  vmrun fetch                              fetch all that runs will need
  vmrun get -suite sid linux-libc-dev      unpack packages, print the directory`

// command builds the command line. The status of a run goes to *status.
func command(status *int) *cobra.Command {
	o := defaults()
	root := &cobra.Command{
		Use:               "vmrun [flags] PROGRAM [ARG...] [--- PROGRAM [ARG...]]... [+++ PROGRAM [ARG...]...]",
		Short:             "run a program on any Linux kernel, in QEMU",
		Long:              long,
		Example:           examples,
		Args:              cobra.ArbitraryArgs,
		SilenceUsage:      true,
		SilenceErrors:     true,
		CompletionOptions: cobra.CompletionOptions{DisableDefaultCmd: true},
		RunE: func(cmd *cobra.Command, args []string) error {
			if o.icount && !cmd.Flags().Changed("cpus") {
				o.cpus = 1
			}
			a, err := newApp(o)
			if err != nil {
				return err
			}
			*status, err = a.run(cmd.Context(), args)
			return err
		},
	}
	f := root.Flags()
	f.SetInterspersed(false) // what follows the program is the program's
	f.SortFlags = false
	f.StringVar(&o.kernel, "kernel", o.kernel, "kernel: "+strings.Join(kernel.Names(), ", ")+" (Debian's), or the path of an image")
	f.StringVar(&o.modules, "modules", "", "`DIR` with the modules of a kernel given by path (lib/modules/VERSION)")
	f.StringVar(&o.arch, "arch", o.arch, "the guest's architecture: "+strings.Join(qemu.Arches(), ", "))
	f.IntVar(&o.cpus, "cpus", o.cpus, "the guest's processors")
	f.StringVar(&o.mem, "mem", o.mem, "the guest's memory, in MiB or with a unit: 512M, 2G")
	f.DurationVar(&o.timeout, "timeout", o.timeout, "time from power-on to the end of the last program")
	f.StringVar(&o.accel, "accel", o.accel, "auto (KVM where it works), tcg or kvm")
	f.BoolVar(&o.icount, "icount", false, "count instructions: the guest's clock advances by 1 ns with each")
	f.StringArrayVar(&o.env, "env", nil, "`NAME=VALUE` for the programs; NAME alone passes vmrun's own")
	f.StringArrayVar(&o.files, "file", nil, "`SRC[:DST]`: put a file or directory into the guest; without DST at the same path")
	f.StringArrayVar(&o.out, "out", nil, "`FILE[:DST]`: bring a file back from the guest; test binaries' profiles come back anyway")
	f.StringSliceVar(&o.with, "with", nil, "`PKG,...`: unpack Debian packages and what they depend on into the guest")
	f.StringVar(&o.withSuite, "with-suite", o.withSuite, "Debian suite for -with")
	f.IntVar(&o.hosts, "hosts", o.hosts, "machines: 1, or 2 that a link joins")
	f.StringVar(&o.dev, "device", o.dev, "RDMA `KIND`s: rxe, siw (iWARP), mlx5[,mode=ib|roce][,personality=NAME] (a ConnectX that is modelled); rxe+siw for both")
	f.StringVar(&o.hca, "hca", "", "`PROGRAM` that models the ConnectX")
	f.StringVar(&o.hcaReport, "hca-report", "", "write to `FILE` what the ConnectX saw, as JSON")
	f.BoolVar(&o.hcaVerbose, "hca-verbose", false, "print what the ConnectX is told, in words, as it comes")
	f.StringVar(&o.net, "net", "", "rxe or whatever -device says (default), veth (no RDMA devices; with -hosts 2 it is eth) or none")
	f.StringVar(&o.loss, "loss", "", "lose `P%` of the packets on the link, each way: 1%, 0.5%")
	f.StringVar(&o.delay, "delay", "", "hold packets on the link back for this `TIME`, each way: 5ms")
	f.StringVar(&o.reorder, "reorder", "", "let `P%` of the packets overtake those that -delay holds back")
	f.StringSliceVar(&o.load, "load", o.load, "`NAME,...`: modules to load, or none, which implies -net none")
	f.StringSliceVar(&o.module, "module", nil, "`NAME,...`: modules to load besides")
	f.BoolVar(&o.noSysfs, "no-sysfs", false, "leave /sys unmounted while the programs run")
	f.StringVar(&o.init, "init", "", "`FILE` for the guest's init, instead of vmrun itself")
	f.StringVar(&o.qemu, "qemu", "", "QEMU `PROGRAM` to use")
	f.StringArrayVar(&o.qemuArgs, "qemu-arg", nil, "one more `ARG` for QEMU's command line")
	f.StringArrayVar(&o.append, "append", nil, "one more `PARAM` for the kernel's command line")
	common(f, &o)
	root.AddCommand(getCommand(&o), fetchCommand(&o))
	return root
}

// common are the flags that every subcommand has.
func common(f *pflag.FlagSet, o *options) {
	f.BoolVarP(&o.verbose, "verbose", "v", false, "show the steps, the kernel's log and the console")
	f.BoolVar(&o.update, "update", false, "fetch anew what the cache has")
}

func getCommand(o *options) *cobra.Command {
	suite, noDeps := o.withSuite, false
	c := &cobra.Command{
		Use:   "get [flags] PACKAGE...",
		Short: "unpack Debian packages into the cache and print the directory",
		Args:  cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			a, err := newApp(*o)
			if err != nil {
				return err
			}
			dir, err := a.store.Get(cmd.Context(), apt.Request{Suite: suite, Arch: o.arch, Packages: args, Deps: !noDeps})
			if err != nil {
				return err
			}
			fmt.Println(dir)
			return nil
		},
	}
	f := c.Flags()
	f.StringVar(&suite, "suite", suite, "Debian suite: bullseye, bookworm, trixie, sid, ...")
	f.StringVar(&o.arch, "arch", o.arch, "architecture of the packages")
	f.BoolVar(&noDeps, "no-deps", false, "leave out what the packages depend on")
	common(f, o)
	return c
}

func fetchCommand(o *options) *cobra.Command {
	c := &cobra.Command{
		Use:   "fetch [flags] [KERNEL...]",
		Short: "fetch kernels (all if none is named) and QEMU, so that runs need no network",
		RunE: func(cmd *cobra.Command, args []string) error {
			a, err := newApp(*o)
			if err != nil {
				return err
			}
			if len(args) == 0 {
				args = kernel.Names()
			}
			for _, name := range args {
				k, err := kernel.Fetch(cmd.Context(), a.store, name, o.arch)
				if err != nil {
					return err
				}
				if err := a.addSiw(cmd.Context(), k); err != nil {
					return err
				}
			}
			if _, err = qemu.Find(cmd.Context(), a.store, o.arch, ""); err != nil {
				return err
			}
			_, err = qemu.FindVFIO(cmd.Context(), a.store, o.arch, "")
			return err
		},
	}
	c.Flags().StringVar(&o.arch, "arch", o.arch, "the guest's architecture")
	c.Flags().StringVar(&o.dev, "device", o.dev, "with siw, build that module for the kernels as well")
	common(c.Flags(), o)
	return c
}

func newApp(o options) (*app, error) {
	if err := o.check(); err != nil {
		return nil, err
	}
	a := &app{options: o, stderr: os.Stderr}
	base, err := os.UserCacheDir()
	if err != nil {
		return nil, fmt.Errorf("%w: set XDG_CACHE_HOME or HOME", err)
	}
	dir, err := cache.Open(filepath.Join(base, "goverbs", "vmrun"), a.sayf)
	if err != nil {
		return nil, err
	}
	a.store = &apt.Store{Cache: dir, Progress: progress.New(os.Stderr), Logf: a.logf, Renew: o.update}
	return a, nil
}

// twoDashes lets long flags be written with one dash, as go test's are:
// -kernel 6.1. It stops where the program's own arguments begin.
func twoDashes(root *cobra.Command, args []string) []string {
	out := append([]string(nil), args...)
	cmd := root
	for i := 0; i < len(out); i++ {
		arg := out[i]
		if arg == "--" {
			break
		}
		if !strings.HasPrefix(arg, "-") || arg == "-" {
			sub, _, err := root.Find([]string{arg})
			if cmd != root || err != nil || sub == root {
				break
			}
			cmd = sub
			continue
		}
		name, _, inline := strings.Cut(strings.TrimLeft(arg, "-"), "=")
		if name == "help" {
			out[i] = "--help"
			continue
		}
		flag := cmd.Flags().Lookup(name)
		if flag == nil {
			continue
		}
		if !strings.HasPrefix(arg, "--") {
			out[i] = "-" + arg
		}
		if !inline && flag.NoOptDefVal == "" {
			i++ // the next one is the value
		}
	}
	return out
}

// execute runs the command line and gives the exit status.
func execute(args []string) int {
	ctx, cancel := context.WithCancelCause(context.Background())
	defer cancel(nil)
	sigs := make(chan os.Signal, 1)
	signal.Notify(sigs, syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP)
	go func() {
		cancel(signalled{(<-sigs).(syscall.Signal)})
		<-sigs // whoever asks twice does not want to wait
		os.Exit(statusFailure)
	}()
	// A reader of ours that goes away must not kill vmrun before the program in
	// the guest has been told and the kernel's log has been judged.
	signal.Notify(make(chan os.Signal, 1), syscall.SIGPIPE)

	status := 0
	root := command(&status)
	root.SetArgs(twoDashes(root, args))
	if err := root.ExecuteContext(ctx); err != nil {
		if ctx.Err() != nil {
			return interruptStatus(ctx)
		}
		fmt.Fprintf(os.Stderr, "vmrun: %v\n", err)
		return statusFailure
	}
	return status
}
