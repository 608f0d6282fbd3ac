package ib

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/goverbs/goverbs/netlinkrdma"
	"github.com/goverbs/goverbs/tools/verbs/internal/command"
	"github.com/goverbs/goverbs/uverbs/ib"
	"github.com/goverbs/goverbs/uverbs/umad"
)

// machine is a System with ports such as "mlx5_0/1 ib active"; what it opens is an error with the name.
func machine(err error, ports ...string) *System {
	var all []Port
	for _, text := range ports {
		words := strings.Fields(text)
		name, num, _ := strings.Cut(words[0], "/")
		p := Port{Device: name, Port: netlinkrdma.Port{Num: uint32(num[0] - '0'), LinkLayer: ib.LinkLayerEthernet, State: ib.PortDown}}
		if words[1] == "ib" {
			p.LinkLayer = ib.LinkLayerInfiniBand
		}
		if words[2] == "active" {
			p.State = ib.PortActive
		}
		all = append(all, p)
	}
	return &System{
		Ports: func() ([]Port, error) { return all, err },
		Open: func(device string, port int) (*umad.Port, error) {
			p := Port{Device: device, Port: netlinkrdma.Port{Num: uint32(port)}}
			return nil, errors.New("opened " + p.String())
		},
	}
}

// TestChoosePort: the flags and what there is decide which port a command opens; an error names what is
// there instead.
func TestChoosePort(t *testing.T) {
	two := []string{"eth0/1 eth active", "mlx5_0/1 ib down", "mlx5_0/2 ib active", "mlx5_1/1 ib active"}
	for _, c := range []struct {
		args  string
		ports []string
		err   error
		want  string
		usage bool
	}{
		{"", two, nil, "opened mlx5_0/2", false},
		{"", two, errors.New("mlx5_9 failed"), "opened mlx5_0/2", false},
		{"", two[:2], nil, "opened mlx5_0/1", false},
		{"--dev mlx5_0", two, nil, "opened mlx5_0/2", false},
		{"--dev mlx5_0 --ib-port 1", two, nil, "opened mlx5_0/1", false},
		{"-i 1", two, nil, "opened mlx5_1/1", false},
		{"-i 3", two, nil, "--ib-port is 3, allowed: that of an InfiniBand port, mlx5_0/1, mlx5_0/2, mlx5_1/1", true},
		{"-i 1", []string{"eth0/1 eth active", "mlx5_0/2 ib active"}, nil, "--ib-port is 1, allowed: that of an InfiniBand port, mlx5_0/2", true},
		{"-i 2", two[:1], nil, "there is no InfiniBand port", false},
		{"-i 3", two, errors.New("netlink failed"), "netlink failed", false},
		{"-d eth0", two, nil, "opened eth0/1", false},
		{"-d mlx5_0 -i 3", two, nil, "--ib-port is 3, allowed for mlx5_0: 1, 2", true},
		{"-d mlx5_2", two, nil, `--dev is "mlx5_2", allowed: eth0, mlx5_0, mlx5_1`, true},
		{"-d mlx5_2", nil, nil, `--dev is "mlx5_2", allowed: none, there is no RDMA device`, true},
		{"", two[:1], nil, "no port is InfiniBand: eth0/1 is Ethernet; --dev names one anyway", false},
		{"", nil, nil, "there is no InfiniBand port", false},
		{"", nil, errors.New("netlink failed"), "netlink failed", false},
		{"--timeout 0s", two, nil, "--timeout is 0s, allowed: 1ms to 1h", true},
	} {
		cmd := &command.Command{Use: "x"}
		o := newOptions(machine(c.err, c.ports...), cmd)
		o.parallelFlag(cmd, 16)
		if err := cmd.Flags().Parse(strings.Fields(c.args)); err != nil {
			t.Fatal(err)
		}
		_, err := o.open()
		if err == nil || err.Error() != c.want || errors.As(err, new(command.UsageError)) != c.usage {
			t.Errorf("%q: %v, want %s", c.args, err, c.want)
		}
		if a := o.agent(1); a.Window != 16 || a.Tries != 3 || a.Timeout != o.timeout || c.args == "" && a.Timeout != time.Second {
			t.Errorf("%q: %+v", c.args, a)
		}
	}
}
