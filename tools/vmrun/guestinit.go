package main

import (
	"context"
	"crypto/sha256"
	"debug/elf"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
)

// guestInit gives the program that becomes the guest's first process: vmrun
// itself if it can run there, else one that is built now and kept.
func (a *app) guestInit(ctx context.Context) (string, error) {
	if a.init != "" {
		return a.init, nil
	}
	self, err := os.Executable()
	if err != nil {
		return "", err
	}
	if a.arch == runtime.GOARCH && isStatic(self) {
		return self, nil
	}
	src, err := sourceDir()
	if err != nil {
		return "", fmt.Errorf("the guest's init for %s has to be built: %w", a.arch, err)
	}
	key, err := hashSource(src)
	if err != nil {
		return "", err
	}
	dir, err := a.store.Cache.Make(ctx, "init-"+a.arch+"-"+key, false, func(tmp string) error {
		a.logf("building the guest's init for %s from %s", a.arch, src)
		cmd := exec.CommandContext(ctx, "go", "build", "-trimpath", "-buildvcs=false", "-ldflags=-s -w", "-o", filepath.Join(tmp, "init"), ".")
		cmd.Dir = src
		cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOOS=linux", "GOARCH="+a.arch, "GOFLAGS=", "GOWORK=off")
		out, err := cmd.CombinedOutput()
		if errors.Is(err, exec.ErrNotFound) {
			return fmt.Errorf("the guest's init for %s has to be built, and there is no Go toolchain in PATH: "+
				"install Go, or build %s elsewhere with GOARCH=%s CGO_ENABLED=0 and name it with -init", a.arch, src, a.arch)
		}
		if err != nil {
			return fmt.Errorf("build the guest's init: %w: %s", err, strings.TrimSpace(string(out)))
		}
		return nil
	})
	if err != nil {
		return "", err
	}
	return filepath.Join(dir, "init"), nil
}

func isStatic(file string) bool {
	f, err := elf.Open(file)
	if err != nil {
		return false
	}
	defer f.Close()
	for _, p := range f.Progs {
		if p.Type == elf.PT_INTERP {
			return false
		}
	}
	return true
}

// modulePath is the first line of this module's go.mod.
const modulePath = "module github.com/goverbs/goverbs/tools/vmrun\n"

// sourceDir finds vmrun's own source: this file's place when it was compiled or,
// if that is not recorded or gone, a checkout that the working directory or
// vmrun's binary is in.
func sourceDir() (string, error) {
	_, file, _, _ := runtime.Caller(0)
	if dir := filepath.Dir(file); filepath.IsAbs(dir) && isSource(dir) {
		return dir, nil
	}
	var starts []string
	if cwd, err := os.Getwd(); err == nil {
		starts = append(starts, cwd)
	}
	if exe, err := os.Executable(); err == nil {
		starts = append(starts, filepath.Dir(exe))
	}
	for _, dir := range starts {
		if found := findSource(dir); found != "" {
			return found, nil
		}
	}
	return "", errors.New("vmrun's source is nowhere near: run it inside a checkout of goverbs, " +
		"or name with -init a vmrun built with CGO_ENABLED=0 for the guest's architecture")
}

// findSource looks for tools/vmrun in dir and the directories above it.
func findSource(dir string) string {
	for {
		if src := filepath.Join(dir, "tools", "vmrun"); isSource(src) {
			return src
		}
		up := filepath.Dir(dir)
		if up == dir {
			return ""
		}
		dir = up
	}
}

func isSource(dir string) bool {
	b, err := os.ReadFile(filepath.Join(dir, "go.mod"))
	return err == nil && strings.HasPrefix(string(b), modulePath)
}

// hashSource gives a key that changes with the source and the toolchain.
func hashSource(dir string) (string, error) {
	h := sha256.New()
	fmt.Fprintln(h, runtime.Version())
	err := filepath.WalkDir(dir, func(p string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		name := d.Name()
		if d.IsDir() || strings.HasSuffix(name, "_test.go") || !strings.HasSuffix(name, ".go") && name != "go.mod" && name != "go.sum" && !strings.HasSuffix(name, ".txt") {
			return nil
		}
		b, err := os.ReadFile(p)
		if err != nil {
			return err
		}
		fmt.Fprintf(h, "%s %d\n%s", p, len(b), b)
		return nil
	})
	return hex.EncodeToString(h.Sum(nil)[:6]), err
}
