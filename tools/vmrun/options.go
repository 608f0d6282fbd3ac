package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/goverbs/goverbs/tools/vmrun/internal/guest"
	"github.com/goverbs/goverbs/tools/vmrun/internal/qemu"
)

// options are the command line's.
type options struct {
	kernel, modules string
	arch            string
	cpus            int
	mem             string
	timeout         time.Duration
	accel           string
	icount          bool

	env   []string
	files []string
	out   []string

	with      []string
	withSuite string

	hosts   int
	loss    string
	delay   string
	reorder string
	net     string
	dev     string // -device as it was given
	devices []device
	load    []string
	module  []string
	noSysfs bool

	hca        string
	hcaReport  string
	hcaVerbose bool

	init     string
	qemu     string
	qemuArgs []string
	append   []string

	verbose bool
	update  bool
}

// netemModules are what the guest needs to make a link bad. A kernel of one's own
// may do without.
var netemModules = []string{"sch_netem?", "sch_prio?", "cls_u32?"}

// channelModules are what the port between host and guest needs.
var channelModules = []string{"virtio_pci", "virtio_console"}

// check finds what can't work before anything is fetched, and fills in defaults
// that depend on other options.
func (o *options) check() error {
	if !slices.Contains(qemu.Arches(), o.arch) {
		return fmt.Errorf("-arch %q: known are %s", o.arch, strings.Join(qemu.Arches(), ", "))
	}
	if o.cpus < 1 || o.cpus > 255 {
		return fmt.Errorf("-cpus %d: want 1 to 255", o.cpus)
	}
	if _, err := o.memMiB(); err != nil {
		return err
	}
	if o.hosts < 1 || o.hosts > guest.MaxHosts {
		return fmt.Errorf("-hosts %d: want 1 to %d", o.hosts, guest.MaxHosts)
	}
	if o.timeout <= 0 {
		return fmt.Errorf("-timeout %v: want more than 0", o.timeout)
	}
	if !slices.Contains([]string{"auto", "tcg", "kvm"}, o.accel) {
		return fmt.Errorf("-accel %q: want auto, tcg or kvm", o.accel)
	}
	if o.modules != "" && !isPath(o.kernel) {
		return errors.New("-modules goes with -kernel PATH; a kernel by name has its own modules")
	}
	if err := o.checkDevices(); err != nil {
		return err
	}
	return o.checkICount()
}

// checkICount is check for -icount. Another machine would have another clock. So has the model of a card: only
// code that does not wait for it is measured exactly.
func (o *options) checkICount() error {
	switch {
	case !o.icount:
		return nil
	case o.accel == "kvm":
		return errors.New("-icount: instructions are counted without KVM only: want -accel tcg or auto")
	case o.cpus != 1:
		return fmt.Errorf("-cpus %d: with -icount, want 1", o.cpus)
	case o.hosts != 1:
		return fmt.Errorf("-hosts %d: with -icount, want 1", o.hosts)
	}
	o.accel = "tcg"
	return nil
}

// netem gives what the options say of the link.
func (o *options) netem() (guest.Netem, error) {
	var words []string
	for _, w := range [][2]string{{"loss", o.loss}, {"delay", o.delay}, {"reorder", o.reorder}} {
		if w[1] != "" {
			words = append(words, w[:]...)
		}
	}
	n, err := guest.ParseNetem(words)
	if err != nil {
		return n, fmt.Errorf("-%w", err)
	}
	return n, nil
}

// isPath reports whether -kernel names a file and not one of Debian's kernels.
func isPath(kernel string) bool { return strings.ContainsRune(kernel, '/') }

func (o *options) memMiB() (int, error) {
	text, unit := strings.TrimSuffix(strings.ToUpper(o.mem), "B"), 1
	if t, ok := strings.CutSuffix(text, "G"); ok {
		text, unit = t, 1024
	} else {
		text = strings.TrimSuffix(text, "M")
	}
	n, err := strconv.Atoi(text)
	if err != nil || n*unit < 128 || n*unit > 1<<20 {
		return 0, fmt.Errorf("-mem %q: want a size such as 512M or 2G, from 128M to 1024G", o.mem)
	}
	return n * unit, nil
}

// environ gives the programs' environment. A variable without a value is taken
// from vmrun's own.
func (o *options) environ(dir string) ([]string, error) {
	env := []string{
		"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
		"HOME=/root", "USER=root", "LOGNAME=root", "SHELL=/bin/sh", "TMPDIR=/tmp", "LANG=C.UTF-8", "PWD=" + dir,
	}
	for _, e := range o.env {
		key, _, ok := strings.Cut(e, "=")
		if key == "" {
			return nil, fmt.Errorf("-env %q: want NAME=VALUE, or NAME to pass vmrun's own", e)
		}
		if !ok {
			value, set := os.LookupEnv(key)
			if !set {
				continue
			}
			e = key + "=" + value
		}
		env = slices.DeleteFunc(env, func(old string) bool { return strings.HasPrefix(old, key+"=") })
		env = append(env, e)
	}
	return env, nil
}

// mounted are the places where the guest mounts something over what the
// initramfs brings.
var mounted = []string{"/proc", "/sys", "/dev", "/run"}

// guestPath gives the place in the guest of a file of the host: the same, where
// possible, so that absolute paths in arguments fit.
func guestPath(host string) string {
	for _, m := range mounted {
		if host == m || strings.HasPrefix(host, m+"/") {
			return "/vmrun" + host
		}
	}
	return host
}

// splitPair takes SRC[:DST] apart. Without DST, the place is the same as on the
// host; a relative one is relative to the working directory, and one that ends
// in a slash is a directory to put SRC into.
func splitPair(pair, cwd string) (src, dst string, err error) {
	src, dst, ok := strings.Cut(pair, ":")
	if src == "" || ok && dst == "" {
		return "", "", fmt.Errorf("%q: want SRC or SRC:DST", pair)
	}
	abs := src
	if !filepath.IsAbs(abs) {
		abs = filepath.Join(cwd, src)
	}
	switch {
	case !ok:
		dst = guestPath(filepath.Clean(abs))
	case strings.HasSuffix(dst, "/"):
		dst += filepath.Base(abs)
	}
	if !filepath.IsAbs(dst) {
		dst = filepath.Join(guestPath(cwd), dst)
	}
	return abs, filepath.Clean(dst), nil
}

func defaults() options {
	return options{kernel: "6.1", arch: runtime.GOARCH, cpus: 2, mem: "1G", timeout: 10 * time.Minute, accel: "auto", withSuite: "bookworm", hosts: 1, load: []string{"default"}}
}
