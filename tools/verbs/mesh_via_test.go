package main

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/goverbs/goverbs/tools/verbs/internal/mesh"
)

// fakeSSH makes a program that runs a command on a host as ssh does: it joins the words, and a shell runs them. Host
// a1 has a software device at 127.0.0.1, and so on; b1 has a start-up file that prints; d1 ends after a second; q1 never
// answers, nor does s1, which greets; x1 is down; and of h1 and w1 another process lives on with the output, after a banner and without one. That of
// l1 is the only one. It returns the program, and a file with the process of each server.
func fakeSSH(t *testing.T) (program, started string) {
	t.Helper()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	program, started = filepath.Join(dir, "fake ssh"), filepath.Join(dir, "started")
	script := fmt.Sprintf(`#!/bin/sh
test "$1" = -o && test "$2" = "Host Name=$3" || { echo "options: $*" >&2; exit 64; }
host=$3; shift 3
case $host in
x*) echo banner >&2; echo "connect to host $host port 22: Connection refused" >&2; exit 255;;
b*) echo 'Welcome!'; echo 'Have a nice day';;
d*) limit="timeout 1";;
q*) exec sleep 1000;;
h*) echo 'Welcome to this host';;
s*) echo 'Hi'; exec sleep 1000;;
esac
case $host in
h*|w*) setsid sleep 1000 & echo $! >>%[1]s.left; exec sleep 1000;;
l*) (trap '' TERM; exec sleep 1000) & echo $! >>%[1]s; exit 3;;
esac
echo $$ >>%[1]s
export %[2]s=1 GOVERBS_SOFT=127.0.0.${host#?}:%[3]d,name=rail0
verbs() { exec $limit %[4]s "$@"; }
eval "$*"
`, started, commandEnv, freeUDP(t), exe)
	if err := os.WriteFile(program, []byte(script), 0o700); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { // processes that a program leaves in sessions of their own are not the run's to end
		left, _ := os.ReadFile(started + ".left")
		for _, pid := range strings.Fields(string(left)) {
			if n, err := strconv.Atoi(pid); err == nil {
				syscall.Kill(n, syscall.SIGKILL)
			}
		}
	})
	return program, started
}

// viaFlags are the flags for the program.
func viaFlags(program string) []string {
	return slices.Concat(meshCalm, []string{"--types", "rc", "--via", fmt.Sprintf(`'%s' -o "Host Name={host}" {host}`, program)})
}

// checkEnded fails unless as many servers were started as expected, and all of them end.
func checkEnded(t *testing.T, started string, want int) {
	t.Helper()
	b, err := os.ReadFile(started)
	pids := strings.Fields(string(b))
	if err != nil || len(pids) != want {
		t.Fatalf("started %q, %v, want %d servers", pids, err, want)
	}
	for _, text := range pids {
		pid, err := strconv.Atoi(text)
		if err != nil {
			t.Fatal(err)
		}
		for until := time.Now().Add(20 * time.Second); !errors.Is(syscall.Kill(pid, 0), syscall.ESRCH); time.Sleep(10 * time.Millisecond) {
			if time.Now().After(until) {
				t.Fatalf("server %d runs on", pid)
			}
		}
	}
}

// TestMeshVia: hosts that only a program reaches are tested without a secret and without listening, and all that was
// started ends. A host that is down, and one that prints before the protocol, are named with the reason.
func TestMeshVia(t *testing.T) {
	program, started := fakeSSH(t)
	rep, status := meshRun(t, append(viaFlags(program), "a1", "a2", "a3")...)
	if status != 0 || !rep.OK || len(rep.Measurements) != 6 {
		t.Fatalf("status %d, %+v", status, rep)
	}
	for _, m := range rep.Measurements {
		if m.Latency == nil || m.Bandwidth == nil || *m.Bandwidth <= 0 {
			t.Errorf("%+v", m)
		}
	}
	checkEnded(t, started, 3)

	rep, status = meshRun(t, append(viaFlags(program), "a1", "a2", "b3", "x4")...)
	want := []string{
		fmt.Sprintf("%q", program+" -o Host Name=b3 b3") + `: it prints "Welcome!" before the protocol of verbs begins`,
		fmt.Sprintf("%q", program+" -o Host Name=x4 x4") + ` has ended: exit status 255, standard error ends with "connect to host x4 port 22: Connection refused"`,
	}
	if status != 1 || len(rep.Findings) != 2 || len(rep.Measurements) != 2 || len(rep.Measurements[1].Errors) > 0 {
		t.Fatalf("status %d, %+v", status, rep)
	}
	for i, f := range rep.Findings {
		if f.Problems[0] != "unreachable" || !strings.HasPrefix(f.Evidence[0], want[i]) {
			t.Errorf("finding %d is %+v, want %s", i, f, want[i])
		}
	}
	checkEnded(t, started, 6)

	rep, status = meshRun(t, append(viaFlags(program), "h1", "l2", "s3")...)
	want = []string{fmt.Sprintf("%q", program+" -o Host Name=h1 h1") + `: it prints "Welcome to this host" before`, fmt.Sprintf("%q", program+" -o Host Name=l2 l2") + " has ended: exit status 3",
		fmt.Sprintf("%q", program+" -o Host Name=s3 s3") + `: it prints "Hi" before`}
	for i, f := range rep.Findings {
		if status != 1 || len(rep.Findings) != 3 || !strings.HasPrefix(f.Evidence[0], want[i]) {
			t.Fatalf("finding %d is %+v, want %s", i, f, want[i])
		}
	}
	checkEnded(t, started, 7)

	rep, _ = meshRun(t, append(viaFlags(program), "--iterations", "1000000", "--repeat", "0", "a1", "d2")...)
	if all := fmt.Sprintf("%+v", rep.Findings); !strings.Contains(all, `=d2 d2" has ended: exit status 124`) {
		t.Errorf("a server that ends in a test: %s", all)
	}
	checkEnded(t, started, 9)

	rep, _ = meshRun(t, append(viaFlags(program), "--verbs-path", "env X=1 nosuch", "a1", "a2")...)
	if len(rep.Findings) != 2 || !strings.Contains(rep.Findings[0].Evidence[0], "exit status 127, standard error ends with") || !strings.HasSuffix(rep.Findings[0].Evidence[0], "give --verbs-path") {
		t.Errorf("without verbs: %+v", rep.Findings)
	}
}

// TestMeshViaInterrupted: when the user interrupts a run, and even when it is killed, the servers that it has started
// end. A run that is interrupted while a program logs in ends with it.
func TestMeshViaInterrupted(t *testing.T) {
	for _, c := range []struct {
		signal os.Signal
		hosts  []string
	}{{os.Interrupt, []string{"a1", "a2"}}, {os.Kill, []string{"a1", "a2"}}, {os.Interrupt, []string{"a1", "q2"}}, {os.Interrupt, []string{"a1", "w2"}}} {
		t.Run(fmt.Sprint(c.signal, c.hosts), func(t *testing.T) {
			program, started := fakeSSH(t)
			servers := 0
			for _, h := range c.hosts {
				if h[0] == 'a' {
					servers++
				}
			}
			cmd := softCommand(t, "", slices.Concat([]string{"mesh", "run"}, viaFlags(program), []string{"--iterations", "1000000"}, c.hosts)...)
			var log bytes.Buffer
			cmd.Stderr = &log
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			for until := time.Now().Add(20 * time.Second); ; time.Sleep(10 * time.Millisecond) {
				if b, _ := os.ReadFile(started); bytes.Count(b, []byte("\n")) == servers {
					break
				}
				if time.Now().After(until) {
					t.Fatal("no server has started")
				}
			}
			cmd.Process.Signal(c.signal)
			err := cmd.Wait()
			if exit, ok := errors.AsType[*exec.ExitError](err); !ok || c.signal == os.Interrupt && (exit.ExitCode() != 1 || !strings.Contains(log.String(), "interrupted")) {
				t.Errorf("%v: %s", err, log.String())
			}
			checkEnded(t, started, servers)
		})
	}
}

// TestMeshStdio: a server at a pipe says first what it speaks, and ends when its input does.
func TestMeshStdio(t *testing.T) {
	const protocol = "goverbs pipe\x00\x00\x00\x06"
	for input, want := range map[string]string{
		"":                                "got 0 of 16 bytes: the peer has hung up",
		"GET / HTTP/1.1\r\n\r\n":          `the peer speaks another protocol: got "GET / HTTP/1.1\r\n"`,
		"goverbs pipe\xff\x00\x00\x06":    "the peer speaks version 4278190086 of the protocol",
		protocol:                          "",
		protocol + "no frames of streams": "",
	} {
		cmd := softCommand(t, "auto", "mesh", "serve", "--stdio")
		var out, log bytes.Buffer
		cmd.Stdout, cmd.Stderr, cmd.Stdin = &out, &log, io.MultiReader(strings.NewReader(input)) // a pipe
		err := cmd.Run()
		if !strings.HasPrefix(out.String(), protocol) || (err == nil) != (want == "") || !strings.Contains(log.String(), want) {
			t.Errorf("%q: %v, %q, %s, want %q", input, err, out.String(), log.String(), want)
		}
	}
}

// TestMeshViaUsage: wrong arguments of a program are refused with what is allowed.
func TestMeshViaUsage(t *testing.T) {
	for _, c := range []struct {
		args []string
		want string
	}{
		{[]string{"run", "--via", "", "a", "b"}, `--via is "", allowed: a program and its arguments with {host} in them`},
		{[]string{"run", "--via", "sh", "a", "b"}, `--via is "sh", allowed: a program and its arguments with {host}`},
		{[]string{"run", "--via", "{host} x", "a", "b"}, "allowed: a program and its arguments with {host}"},
		{[]string{"run", "--via", "sh '{host}", "a", "b"}, `--via is "sh '{host}", which ends within ' quotes`},
		{[]string{"run", "--via", "nosuchprogram {host}", "a", "b"}, "allowed: a program of this machine: "},
		{[]string{"run", "--via", "sh {host}", "a", "-b"}, "unknown"},
		{[]string{"run", "--via", "sh {host}", "--", "a", "-oProxyCommand=x"}, `a host is "-oProxyCommand=x", allowed with --via: up to 253 letters, digits and ._:@/%-, and no - at the beginning`},
		{[]string{"run", "--via", "sh {host}", "a", "b;reboot"}, `a host is "b;reboot", allowed with --via`},
		{[]string{"run", "--via", "sh {host}", "a", "a"}, `the host "a" is there twice`},
		{[]string{"run", "--via", "sh {host}", "--verbs-path", "", "a", "b"}, `--verbs-path is "", allowed: the path or name of a program`},
		{[]string{"run", "--via", "sh {host}", "--secret-file", "x", "a", "b"}, "--secret-file and --via exclude each other"},
		{[]string{"run", "--verbs-path", "x", "a", "b"}, `--verbs-path is "x", allowed: only with --via`},
		{[]string{"serve", "--stdio", "--port", "1"}, "--stdio and --port exclude each other"},
		{[]string{"serve", "--stdio", "--quiet"}, "--stdio and --quiet exclude each other"},
	} {
		if _, err := run(t, append([]string{"mesh"}, c.args...)...); exitStatus(err) != 2 || !strings.Contains(err.Error(), c.want) {
			t.Errorf("verbs mesh %q: %v, want %q", c.args, err, c.want)
		}
	}
	if _, err := mesh.NewVia("sh {host}", "sudo verbs"); err != nil {
		t.Error(err)
	}
}
