package main

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/goverbs/goverbs/tools/vmrun/internal/apt"
	"github.com/goverbs/goverbs/tools/vmrun/internal/guest"
	"github.com/goverbs/goverbs/tools/vmrun/internal/initramfs"
	"github.com/goverbs/goverbs/tools/vmrun/internal/kernel"
	"github.com/goverbs/goverbs/tools/vmrun/internal/kmod"
)

// image is the guest's initramfs in memory. If there are several hosts, all have the
// same one.
type image struct {
	file  *os.File
	hosts []imageHost
}

// imageHost is what one host does.
type imageHost struct {
	fetch  map[string]string // files to bring back: by path in the guest, path on the host
	nprogs int
}

// buildImage writes the initramfs: what belongs to the kernel, which is kept in
// the cache, and what belongs to this run.
func (a *app) buildImage(ctx context.Context, k *kernel.Kernel, hosts [][][]string) (*image, error) {
	cwd, err := os.Getwd()
	if err != nil {
		return nil, err
	}
	link, err := a.netem()
	if err != nil {
		return nil, err
	}
	cfg := guest.Config{Net: a.net, Link: link, NoSysfs: a.noSysfs, Dir: guestPath(cwd)}
	env, err := a.environ(cfg.Dir)
	if err != nil {
		return nil, err
	}
	im := &image{}
	t, err := a.tree(ctx, cwd)
	if err != nil {
		return nil, err
	}
	init, err := a.guestInit(ctx)
	if err != nil {
		return nil, err
	}
	if err := t.AddHost("/init", init); err != nil {
		return nil, err
	}
	t.AddLink(guest.LinkPath, "/init")
	for i, progs := range hosts {
		h := guest.Host{Env: env}
		if len(hosts) > 1 {
			h.Env = hostEnv(env, i+1, len(hosts))
		}
		ih := imageHost{nprogs: len(progs), fetch: map[string]string{}}
		if err := a.addPrograms(&ih, t, &h, progs, cwd); err != nil {
			return nil, err
		}
		a.addFetch(&ih, t, &h, cfg.Dir)
		im.hosts, cfg.Hosts = append(im.hosts, ih), append(cfg.Hosts, h)
	}
	tellApart(im.hosts)
	if err := a.addBuilt(ctx, k); err != nil {
		return nil, err
	}
	seg, err := a.kernelSegment(ctx, k)
	if err != nil {
		return nil, err
	}
	defer seg.close()
	cfg.Channel, cfg.Modules, cfg.Netem = seg.Channel, seg.Load, seg.Netem
	b, err := json.Marshal(cfg)
	if err != nil {
		return nil, err
	}
	t.AddBytes(guest.ConfigPath, b, 0o644)
	im.file, err = assemble(t, seg)
	return im, err
}

// addPrograms puts a host's programs into the tree and the configuration.
func (a *app) addPrograms(ih *imageHost, t *initramfs.Tree, h *guest.Host, progs [][]string, cwd string) error {
	for _, p := range progs {
		prog, err := addProgram(t, p, cwd, a.arch)
		if err != nil {
			return err
		}
		h.Programs = append(h.Programs, prog)
		maps.Copy(ih.fetch, profiles(p[1:], cwd))
		for _, dir := range outputDirs(p[1:]) {
			t.AddDir(dir, 0o755)
		}
	}
	return nil
}

// addFetch sees to the files that are to come back, profiles and those of -out.
func (a *app) addFetch(ih *imageHost, t *initramfs.Tree, h *guest.Host, dir string) {
	for _, o := range a.out {
		src, dst, ok := strings.Cut(o, ":")
		if !ok {
			dst = filepath.Base(src)
		}
		if !path.IsAbs(src) {
			src = path.Join(dir, src)
		}
		ih.fetch[src] = dst
	}
	for src := range ih.fetch {
		t.AddDir(path.Dir(src), 0o755)
		h.Fetch = append(h.Fetch, src)
	}
	slices.Sort(h.Fetch)
}

// tellApart sees to it that a file which comes back from several hosts does not
// overwrite itself: the second one's name ends in ".2", and so on.
func tellApart(hosts []imageHost) {
	taken := map[string]bool{}
	for i, h := range hosts {
		before := maps.Clone(taken)
		for src, dst := range h.fetch {
			taken[dst] = true
			if before[dst] {
				h.fetch[src] = fmt.Sprintf("%s.%d", dst, i+1)
			}
		}
	}
}

// tree gives what the guest has besides the kernel's part and the programs.
func (a *app) tree(ctx context.Context, cwd string) (*initramfs.Tree, error) {
	t := initramfs.New()
	t.AddBase()
	if len(a.with) > 0 {
		root, err := a.store.Get(ctx, apt.Request{Suite: a.withSuite, Arch: a.arch, Packages: a.with, Deps: true})
		if err != nil {
			return nil, fmt.Errorf("-with %s: %w", strings.Join(a.with, ","), err)
		}
		if err := t.AddHost("/", root); err != nil {
			return nil, err
		}
		addShell(t)
	}
	testdata := filepath.Join(cwd, "testdata")
	if st, err := os.Stat(testdata); err == nil && st.IsDir() {
		if err := t.AddHost(guestPath(testdata), testdata); err != nil {
			return nil, err
		}
	}
	for _, f := range a.files {
		src, dst, err := splitPair(f, cwd)
		if err != nil {
			return nil, fmt.Errorf("-file %w", err)
		}
		if err := t.AddHost(dst, src); err != nil {
			return nil, fmt.Errorf("-file %s: %w", f, err)
		}
	}
	return t, nil
}

// addShell makes /bin/sh, which in Debian is a maintainer script's work.
func addShell(t *initramfs.Tree) {
	if f, err := t.Open("/bin/sh"); err == nil {
		f.Close()
		return
	}
	for _, sh := range []string{"dash", "bash", "busybox"} {
		if f, err := t.Open("/bin/" + sh); err == nil {
			f.Close()
			t.AddLink("/bin/sh", sh)
			return
		}
	}
}

// addBuilt adds the modules that the options load and that have to be built to the kernel's own
// modules.
func (a *app) addBuilt(ctx context.Context, k *kernel.Kernel) error {
	for _, m := range kmod.All {
		if !slices.Contains(slices.Concat(a.load, a.module), m.Name) {
			continue
		}
		file, err := m.Build(ctx, a.store, k, a.arch)
		if err != nil {
			return err
		}
		if file == "" {
			continue
		}
		if err := k.Modules.Add(file); err != nil {
			return err
		}
	}
	return nil
}

// segment is the kernel's part of an initramfs.
type segment struct {
	Channel []string // Channel, Load and Netem are paths of modules in the guest, in load order.
	Load    []string
	Netem   []string
	cpio    io.ReadCloser
}

func (s *segment) close() { s.cpio.Close() }

// kernelSegment gives the part of the initramfs with the modules. For a kernel
// of Debian's it is kept, since unpacking the modules takes a second.
func (a *app) kernelSegment(ctx context.Context, k *kernel.Kernel) (*segment, error) {
	if k.ID == "" {
		dir, err := os.MkdirTemp("", "vmrun")
		if err != nil {
			return nil, err
		}
		defer os.RemoveAll(dir)
		if err := a.writeSegment(k, dir); err != nil {
			return nil, err
		}
		return readSegment(dir)
	}
	var lists []string
	for _, l := range [][]string{channelModules, a.load, a.module, netemModules} {
		lists = append(lists, strings.Join(l, ","))
	}
	key := sha256.Sum256([]byte(strings.Join(lists, ";")))
	dir, err := a.store.Cache.Make(ctx, "initramfs-"+k.ID+"-"+hex.EncodeToString(key[:6]), false, func(tmp string) error {
		if err := os.Mkdir(tmp, 0o755); err != nil {
			return err
		}
		return a.writeSegment(k, tmp)
	})
	if err != nil {
		return nil, err
	}
	return readSegment(dir)
}

func (a *app) writeSegment(k *kernel.Kernel, dir string) error {
	channel, err := k.Modules.Resolve(channelModules...)
	if err != nil {
		return err
	}
	load, err := k.Modules.Resolve(slices.Concat(channelModules, a.load, a.module)...)
	if err != nil {
		if k.ID == "" {
			err = fmt.Errorf("%w; a kernel of one's own needs -modules DIR, or all of it built in", err)
		}
		return err
	}
	// Modules that are not loaded are there all the same, for a program that loads them.
	rest, err := k.Modules.Resolve(defaultModules...)
	if err != nil && !errors.Is(err, kernel.ErrNoModule) {
		return err
	}
	netem, err := k.Modules.Resolve(netemModules...)
	if err != nil {
		return err
	}
	seg := segment{Channel: []string{}, Load: []string{}, Netem: []string{}}
	t := initramfs.New()
	for _, list := range []struct {
		mods []*kernel.Module
		dst  *[]string
	}{{channel, &seg.Channel}, {load, &seg.Load}, {netem, &seg.Netem}, {rest, nil}} {
		for _, m := range list.mods {
			p := initramfs.Clean(path.Join("/lib/modules", k.Modules.Release(), m.Path))
			t.AddBytes(p, m.Image, 0o644)
			if list.dst != nil {
				*list.dst = append(*list.dst, p)
			}
		}
	}
	b, err := json.Marshal(seg)
	if err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(dir, "modules.json"), b, 0o644); err != nil {
		return err
	}
	f, err := os.Create(filepath.Join(dir, "modules.cpio"))
	if err != nil {
		return err
	}
	return errors.Join(t.Write(f), f.Close())
}

func readSegment(dir string) (*segment, error) {
	b, err := os.ReadFile(filepath.Join(dir, "modules.json"))
	if err != nil {
		return nil, err
	}
	var s segment
	if err := json.Unmarshal(b, &s); err != nil {
		return nil, err
	}
	s.cpio, err = os.Open(filepath.Join(dir, "modules.cpio"))
	return &s, err
}

// assemble puts the parts into one file that has no name, so that nothing is
// left behind however vmrun ends.
func assemble(t *initramfs.Tree, seg *segment) (*os.File, error) {
	fd, err := unix.MemfdCreate("initramfs", unix.MFD_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("memfd_create: %w", err)
	}
	f := os.NewFile(uintptr(fd), "initramfs")
	if err := t.Write(f); err != nil {
		f.Close()
		return nil, err
	}
	if _, err := io.Copy(f, seg.cpio); err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}

// profileFlags are the flags of a test binary that name a file to write.
var profileFlags = []string{"coverprofile", "cpuprofile", "memprofile", "blockprofile", "mutexprofile", "trace"}

// outputDirs gives the directories that a test binary expects to be there.
func outputDirs(args []string) []string {
	var dirs []string
	for _, arg := range args {
		for _, flag := range []string{"-test.gocoverdir=", "-test.outputdir="} {
			if dir, ok := strings.CutPrefix(arg, flag); ok && filepath.IsAbs(dir) {
				dirs = append(dirs, dir)
			}
		}
	}
	return dirs
}

// profiles gives the files that a test binary is told to write, so that they
// come back to where go test looks for them.
func profiles(args []string, cwd string) map[string]string {
	found, dir := map[string]string{}, cwd
	for _, arg := range args {
		if d, ok := strings.CutPrefix(arg, "-test.outputdir="); ok {
			dir = d
		}
	}
	for _, arg := range args {
		flag, file, ok := strings.Cut(strings.TrimPrefix(arg, "-test."), "=")
		if !ok || file == "" || !strings.HasPrefix(arg, "-test.") || !slices.Contains(profileFlags, flag) {
			continue
		}
		if !filepath.IsAbs(file) {
			file = filepath.Join(dir, file)
		}
		found[file] = file
	}
	return found
}
