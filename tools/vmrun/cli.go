package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/goverbs/goverbs/tools/vmrun/internal/apt"
	"github.com/goverbs/goverbs/tools/vmrun/internal/cache"
	"github.com/goverbs/goverbs/tools/vmrun/internal/kernel"
	"github.com/goverbs/goverbs/tools/vmrun/internal/progress"
	"github.com/goverbs/goverbs/tools/vmrun/internal/qemu"
	"github.com/goverbs/goverbs/tools/vmrun/internal/valkey"
)

const long = `Standard input, output, error and the exit status are the program's, so that vmrun serves go test:

    go test -exec "vmrun -kernel 6.1" ./...

The kernel and, if it is not installed, QEMU come from the Debian archive that the apt sources of
this system name. They are kept in the user's cache directory. vmrun installs nothing and needs no
privileges.

The guest:
In the guest the program has the same path and working directory as here, with a copy of the
directory's testdata. A program is looked up first in the guest (see -with), by its name or path,
and then here. "---" separates programs that run one after another; the exit status is the first
that is not 0. By default there is a veth pair: ve0 (10.1.0.1/24, fd00:1::1/64) and ve1
(10.1.0.2/24, fd00:1::2/64), with the RDMA devices rxe0 and rxe1 on them.

Several hosts:
With -hosts N there are N guests, up to 8, connected by an Ethernet link. Each has eth0 and rxe0:
host 1 with 10.2.0.1/24 and fd02::1/64, host 2 with 10.2.0.2/24 and fd02::2/64, and so on. "+++"
separates the programs of host 1 from those of host 2 and of each later one; without it all run the
same. VMRUN_HOST is the number of the host, VMRUN_HOSTS how many there are, and VMRUN_PEER the IPv4
address of host 2 on host 1, and of host 1 on the others. The programs start when all hosts are up
and have reached each other. Lines of output begin with the number, as in "2: ". Standard input goes
to host 1. If several hosts return a file of the same name, those after the first get the suffix
".2" and so on. When the programs of one host have failed, the others are stopped 5 s later. The
exit status is the first that is not 0, host 1 before host 2; that of a stopped host counts last. On
a machine with fewer than four processors, -cpus 1 makes the link faster.

Devices:
With -device mlx5 the devices are ConnectX-5 cards that the program hca models: mlx5_0 and mlx5_1,
or mlx5_0 in each of two hosts, on one fabric. On Ethernet (mode=roce) their network devices have
the addresses above, and replace eth0 with two hosts. On InfiniBand (mode=ib) the loopback device
has the addresses 10.1.0.1 and 10.1.0.2. With mode=ipoib there is also a subnet manager, Debian's
opensm, on host 1, and the network devices ib0 and ib1 have the addresses above, or ib0
in each of two hosts, where it replaces eth0. topology=FILE then connects the cards by switches, as
ibnetdiscover has written them to the file; ring:N and the like make some, see "hca -help". The path
of the file cannot have "," or "+". At the end vmrun prints what the cards observed.
personality=NAME selects registers, capabilities and behavior that differ from the usual; "hca
-help" lists the names. A number is a seed from which a personality is drawn, and "random" draws the
seed, too. The seed and the differences are printed at the start, and VMRUN_PERSONALITY has them.
strict makes it an error to set reserved bits in queues and doorbells, which a card does not read.

With -device efa the devices are Elastic Fabric Adapters of AWS that the program efa models: efa_0
and efa_1, or efa_0 in each of two hosts. They carry no IP: the loopback device has the addresses
10.1.0.1 and 10.1.0.2, and two hosts have eth0. "efa -help" lists the personalities.

With -device siw the devices are soft iWARP: siw0 and siw1 replace rxe0 and rxe1. Debian's kernels
do not have the drivers siw and efa. vmrun builds them from Debian's kernel source with gcc and make
of this machine, once for each kernel, in less than a minute.

A machine can have several kinds of devices, as in -device rxe+siw+mlx5. The first kind has the
addresses above. The second has ve2 and ve3 (10.1.1.1/24, fd00:2::1/64 and 10.1.1.2/24,
fd00:2::2/64), and the third the next ones; a card's network devices replace the veth pair.

The clock:
With -icount a program measures the number of executed instructions, including the kernel's, and not
time. The result does not depend on the load of this machine or on the distance of memory. While the
guest is idle, its clock advances at once to the next event. With -device mlx5 the clock of an idle
guest advances in real time, because the card's model does. Only code that does not wait for the
card is measured exactly: a wait counts as the real time, or the polls, that it takes. The guest has
one processor and no KVM.

The link:
-loss, -delay and -reorder impair the link from the start, between hosts or between ve0 and ve1.
A program can impair and cut it later:

    vmlink [DEVICE] down
    vmlink [DEVICE] up
    vmlink [DEVICE] netem [to IPV4] [loss P%] [delay TIME] [reorder P%]
    vmlink [DEVICE] netem off

DEVICE is the device that sends: by default eth0 with several hosts and ve0 with one. With "to",
netem affects only packets to that address. It replaces earlier settings. "down" is a port error at
this end and silence at the other; "netem loss 100%" is silence on a port that stays active.
The packets of -device mlx5 do not pass through the kernel: -loss and -delay apply to the
fabric of the cards, and netem does not affect it.

A kernel error on the list of known kernel bugs is printed with its cause, and does not change the
exit status.`

const examples = `  vmrun ./prog arg                         # run a static binary on Debian's 6.1
  go test -exec "vmrun -kernel 5.10" ./... # the same for tests
  vmrun -kernel latest -arch arm64 ./prog  # another kernel, another architecture
  vmrun -with ibverbs-utils,ibverbs-providers ibv_devinfo
  vmrun -with iproute2,dash sh -c 'rdma link; ip address'
  vmrun ./a --- ./b                        # two programs in one boot
  vmrun -device mlx5,mode=ib,personality=random ./prog
  vmrun -device siw -with ibverbs-utils,ibverbs-providers ibv_devinfo
  vmrun -hosts 2 ./server +++ ./client 10.2.0.1
  vmrun -kernel ~/linux/arch/x86/boot/bzImage -modules ~/linux/mods ./prog
  vmrun fetch                              # download everything that runs need
  vmrun get -suite sid linux-libc-dev      # unpack packages, print the directory`

// command builds the command line. A run stores its exit status in *status.
func command(status *int) *cobra.Command {
	o := defaults()
	root := &cobra.Command{
		Use:               "vmrun [flags] PROGRAM [ARG...] [--- PROGRAM [ARG...]]... [+++ PROGRAM [ARG...]...]",
		Short:             "Run a program, or several, on any Linux kernel in QEMU",
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
	root.PersistentFlags().BoolP("help", "h", false, "print this help")
	root.SetHelpFunc(printHelp)
	root.SetFlagErrorFunc(flagError)
	f := root.Flags()
	f.SetInterspersed(false) // the flags after the program belong to the program
	f.SortFlags = false
	f.StringVar(&o.kernel, "kernel", o.kernel, "`KERNEL`: "+strings.Join(kernel.Names(), ", ")+" (Debian's), or the path of an image")
	f.StringVar(&o.modules, "modules", "", "`DIR` with the modules of a kernel given by path (lib/modules/VERSION)")
	f.StringVar(&o.arch, "arch", o.arch, "`ARCH` of the guest: "+strings.Join(qemu.Arches(), ", "))
	f.IntVar(&o.cpus, "cpus", o.cpus, "give the guest `N` processors, 1 to 255")
	f.StringVar(&o.mem, "mem", o.mem, "`SIZE` of the guest's memory, in MiB or with a unit: 512M, 2G")
	f.DurationVar(&o.timeout, "timeout", o.timeout, "limit the `TIME` from power-on to the end of the last program")
	f.StringVar(&o.accel, "accel", o.accel, "`ACCEL`: auto (KVM where it works), tcg or kvm")
	f.BoolVar(&o.icount, "icount", false, "count instructions: each advances the guest's clock by 1 ns")
	f.StringArrayVar(&o.env, "env", nil, "`NAME=VALUE` for the programs; NAME alone passes the value in vmrun's environment")
	f.StringArrayVar(&o.files, "file", nil, "`SRC[:DST]`: put a file or directory into the guest; without DST at the same path")
	f.StringArrayVar(&o.out, "out", nil, "`FILE[:DST]`: copy a file from the guest; the profiles of test binaries are copied anyway")
	f.StringSliceVar(&o.with, "with", nil, "`PKG,...`: unpack Debian packages and their dependencies into the guest")
	f.StringVar(&o.withSuite, "with-suite", o.withSuite, "Debian `SUITE` for -with")
	f.IntVar(&o.hosts, "hosts", o.hosts, "run `N` guests, 1 to 8, which a link connects")
	f.StringVar(&o.dev, "device", o.dev, "RDMA `KIND`s: rxe, siw (iWARP), rxe+siw, efa[,personality=NAME] (a modelled EFA card), mlx5 (a modelled ConnectX), with options: mlx5[,mode=ib|ipoib|roce][,topology=FILE][,personality=NAME][,strict]")
	f.StringVar(&o.hca, "hca", "", "`PROGRAM` that models the cards of -device mlx5 or efa")
	f.StringVar(&o.hcaReport, "hca-report", "", "write what the cards observed to `FILE`, as JSON")
	f.BoolVar(&o.hcaVerbose, "hca-verbose", false, "print the commands that the cards receive, in words")
	f.StringVar(&o.net, "net", "", "`NET`: rxe or the kind of -device (default), veth (no RDMA devices; with several hosts it is eth) or none")
	f.StringVar(&o.loss, "loss", "", "lose `P%` of the packets on the link, each way: 1%, 0.5%")
	f.StringVar(&o.delay, "delay", "", "delay packets on the link by this `TIME`, each way: 5ms")
	f.StringVar(&o.reorder, "reorder", "", "let `P%` of the packets overtake those that are delayed")
	f.StringSliceVar(&o.load, "load", o.load, "`NAME,...`: modules to load, or none, which implies -net none")
	f.StringSliceVar(&o.module, "module", nil, "`NAME,...`: more modules to load")
	f.BoolVar(&o.noSysfs, "no-sysfs", false, "leave /sys unmounted while the programs run")
	f.StringVar(&o.init, "init", "", "use `FILE` as the guest's init instead of vmrun itself")
	f.StringVar(&o.qemu, "qemu", "", "use this QEMU `PROGRAM`")
	f.StringArrayVar(&o.qemuArgs, "qemu-arg", nil, "add `ARG` to QEMU's command line")
	f.StringArrayVar(&o.append, "append", nil, "add `PARAM` to the kernel's command line")
	common(f, &o)
	root.AddCommand(getCommand(&o), fetchCommand(&o), buildCommand(&o))
	return root
}

// common defines the flags that every command has.
func common(f *pflag.FlagSet, o *options) {
	f.BoolVarP(&o.verbose, "verbose", "v", false, "show the steps, the kernel's log and the console")
	f.BoolVar(&o.update, "update", false, "download again what the cache has")
}

func getCommand(o *options) *cobra.Command {
	suite, noDeps := o.withSuite, false
	c := &cobra.Command{
		Use:   "get [flags] PACKAGE...",
		Short: "Unpack Debian packages into the cache and print the directory",
		Example: `  vmrun get libibverbs-dev
  vmrun get -suite sid -no-deps linux-libc-dev`,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) == 0 {
				return errors.New("get: want the name of a Debian package, or several")
			}
			return nil
		},
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
	f.StringVar(&suite, "suite", suite, "Debian `SUITE`: bullseye, bookworm, trixie, sid, ...")
	f.StringVar(&o.arch, "arch", o.arch, "`ARCH` of the packages")
	f.BoolVar(&noDeps, "no-deps", false, "without dependencies")
	common(f, o)
	return c
}

func fetchCommand(o *options) *cobra.Command {
	c := &cobra.Command{
		Use:   "fetch [flags] [KERNEL...]",
		Short: "Download kernels (all if none is named) and QEMU, so that runs need no network",
		Example: `  vmrun fetch
  vmrun fetch -device siw 6.1 6.12`,
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
				if err := a.addBuilt(cmd.Context(), k); err != nil {
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
	c.Flags().StringVar(&o.arch, "arch", o.arch, "`ARCH` of the guest")
	c.Flags().StringVar(&o.dev, "device", o.dev, "`KIND`s of devices: with siw or efa, build that module for the kernels as well")
	common(c.Flags(), o)
	return c
}

func buildCommand(o *options) *cobra.Command {
	c := &cobra.Command{
		Use:   "build [flags] valkey|valkey-8.1",
		Short: "Build Valkey with RDMA from Debian's source into the cache, and print the directory",
		Long: `
The programs are valkey-server, valkey-cli and valkey-benchmark. Debian's own do not have RDMA. Of
Valkey 8.1 it is valkey-server alone, since the other two do not have RDMA yet. The programs are
built with gcc and make of this machine. In the guest they need the libraries that "-with
rdmacm-utils,ibverbs-providers" puts there.`,
		Example: `  vmrun build valkey
  vmrun build valkey-8.1`,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) != 1 || !slices.Contains(valkey.Names(), args[0]) {
				return fmt.Errorf("build %q: want %s, which is all that vmrun builds", args, strings.Join(valkey.Names(), " or "))
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			a, err := newApp(*o)
			if err != nil {
				return err
			}
			dir, err := valkey.Programs(cmd.Context(), a.store, args[0], o.arch, o.withSuite)
			if err != nil {
				return err
			}
			fmt.Println(dir)
			return nil
		},
	}
	c.Flags().StringVar(&o.withSuite, "with-suite", o.withSuite, "Debian `SUITE` of the libraries in the guest")
	c.Flags().StringVar(&o.arch, "arch", o.arch, "`ARCH` of the guest")
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

// execute runs the command line and returns the exit status.
func execute(args []string) int {
	ctx, cancel := context.WithCancelCause(context.Background())
	defer cancel(nil)
	sigs := make(chan os.Signal, 1)
	signal.Notify(sigs, syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP)
	go func() {
		cancel(signalled{(<-sigs).(syscall.Signal)})
		<-sigs // a second signal ends vmrun at once
		os.Exit(statusFailure)
	}()
	// A closed standard output must not kill vmrun before it has stopped the program in the guest and
	// checked the kernel's log.
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
