package main

import (
	"strings"
	"testing"
)

func TestRpingOptions(t *testing.T) {
	for _, c := range []struct{ args, want string }{
		{"", "either --server (-s) or --client (-c)"},
		{"-s -c", "either --server (-s) or --client (-c)"},
		{"-c", "--address (-a) is missing"},
		{"-s -I 10.1.0.2", `--source (-I) is "10.1.0.2", allowed: only with --client (-c)`},
		{"-c -a 10.1.0.1 -P", "--persistent (-P) is true, allowed: only with --server (-s)"},
		{"-s -p 0", "--port is 0, allowed: 1 to 65535"},
		{"-c -a 10.1.0.1 -C -1", "--count is -1, allowed: 0 and more"},
		{"-c -a 10.1.0.1 -S 25", "--size is 25, allowed: 26 to 65535"},
		{"-c -a 10.1.0.1 -S 65536", "--size is 65536, allowed: 26 to 65535"},
		{"-s --timeout 0s", "--timeout is 0s, allowed: more than 0"},
		{"-s -v --json", "exclude each other"},
		{"-s host", `the arguments of verbs rping are "host", allowed: none`},
		{"-s -P --max-clients 0", "--max-clients is 0, allowed: 1 to 65536"},
	} {
		_, err := run(t, append([]string{"rping"}, strings.Fields(c.args)...)...)
		if exitStatus(err) != 2 || !strings.Contains(err.Error(), c.want) {
			t.Errorf("rping %s: status %d, %v, want %q", c.args, exitStatus(err), err, c.want)
		}
	}
	for args, want := range map[string]string{
		"-c -a no-such-host.invalid":             `--address is "no-such-host.invalid": `,
		"-c -a 10.1.0.1 -I no-such-host.invalid": `--source is "no-such-host.invalid": `,
	} {
		_, err := run(t, append([]string{"rping"}, strings.Fields(args)...)...)
		if exitStatus(err) != 1 || !strings.Contains(err.Error(), want) {
			t.Errorf("rping %s: status %d, %v, want %q", args, exitStatus(err), err, want)
		}
	}
	out, err := run(t, "rping", "--help")
	for _, want := range []string{"-s, --server", "-c, --client", "-a, --address", "-P, --persistent", "-V, --verify", "-I, --source", "7174"} {
		if err != nil || !strings.Contains(out, want) {
			t.Errorf("the help does not mention %s: %v", want, err)
		}
	}
}
