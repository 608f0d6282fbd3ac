package main

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/goverbs/goverbs/tools/internal/privatefile"
	"github.com/goverbs/goverbs/tools/verbs/internal/command"
	"github.com/goverbs/goverbs/tools/verbs/internal/mesh"
	"github.com/goverbs/goverbs/tools/verbs/internal/peertext"
	"github.com/goverbs/goverbs/tools/verbs/internal/perf"
	"github.com/goverbs/goverbs/tools/verbs/internal/terminal"
)

// secretEnv has the secret of a mesh, unless a file has it.
const secretEnv = "GOVERBS_MESH_SECRET"

func newMesh() *command.Command {
	cmd := command.Group(&command.Command{
		Use:   "mesh [flags] COMMAND",
		Short: "Check the RDMA links between all hosts of a fleet",
		Long: `"verbs mesh serve" runs on every host, and "verbs mesh run" on any one machine. It has each host
test latency and bandwidth with each other one, and reports which host, device or link is
unreachable, or worse than the others. With --via it starts the servers itself, such as over ssh.`,
		Example: `  verbs mesh run --via 'ssh {host}' node1 node2 node3 node4
  verbs mesh serve --secret-file /etc/verbs-mesh.secret
  verbs mesh run --secret-file /etc/verbs-mesh.secret node1 node2 node3 node4`,
	})
	cmd.Add(newMeshServe(), newMeshRun())
	return cmd
}

// readSecret returns the secret: the first line of a file, or that of the environment.
func readSecret(cmd *command.Command, file string) ([]byte, error) {
	secret, from := []byte(os.Getenv(secretEnv)), secretEnv
	if file != "" {
		var err error
		if secret, err = cmd.ReadFile(file); err != nil {
			return nil, fmt.Errorf("--secret-file: %w", err)
		}
		secret, _, _ = bytes.Cut(secret, []byte("\n"))
		from = "--secret-file"
	}
	if secret = bytes.TrimSpace(secret); len(secret) == 0 {
		return nil, command.Usagef("the secret is missing: give --secret-file or the environment variable %s", secretEnv)
	}
	if n := len(secret); n < perf.LeastSecret {
		return nil, command.Usagef("the secret of %s has %d characters, allowed: %d and more, such as of \"openssl rand -hex 32\"", from, n, perf.LeastSecret)
	}
	return secret, nil
}

func newMeshServe() *command.Command {
	var s serveOptions
	var secretFile string
	var stdio bool
	cmd := &command.Command{
		Use:   "serve [flags]",
		Short: "Take part in the checks of a fleet until interrupted",
		Long: `Each check needs the secret of the fleet: whoever connects must prove that they know it, and the
server proves it, too. The secret itself is never sent. Requests and results are encrypted
(Noise_NN_25519_ChaChaPoly_SHA256), and the proofs are tied to the connection: a host that stands
between two others cannot use them.

Security:
The secret keeps everybody else from running tests. A host to which a coordinator or a server
connects by mistake gets a proof, with which it can try secrets offline, so choose a random one.
There is no encryption of the messages of a test. Anyone who knows the secret can have this host
connect to any host and port, and can keep the device, the link and a processor busy. The server
sends messages of a test only to an address that has shown that it receives them. During a test, the
keys of its memory (rkeys) are bearer tokens. Let the server listen only on an address of a network
that you trust (--listen).

--stdio is for "verbs mesh run --via", which runs this command on each host: it serves the one
connection of standard input and output, listens nowhere, and ends when its input does.

`,
		Example: `  verbs mesh serve                 # with the secret in the environment
  verbs mesh serve --secret-file /etc/verbs-mesh.secret --listen 10.1.0.1`,
		Exit: "  0  interrupted\n  1  failure; standard error has the reason",
		Args: command.Arguments(0),
		Run: func(cmd *command.Command, _ []string) error {
			server := &perf.Server{Local: perf.Local{GID: perf.Auto, CPU: perf.Auto}}
			if stdio {
				return serveStdio(cmd, &s, server)
			}
			var err error
			if server.Secret, err = readSecret(cmd, secretFile); err != nil {
				return err
			}
			return s.serve(cmd, server)
		},
	}
	s.flags(cmd.Flags(), mesh.DefaultPort)
	cmd.Flags().StringVar(&secretFile, "secret-file", "", "`FILE` with the secret of the fleet in its first line (default "+secretEnv+")")
	cmd.Flags().BoolVar(&stdio, "stdio", false, "serve the connection of standard input and output, without a secret")
	return cmd
}

// serveStdio serves the coordinator that has started this process.
func serveStdio(cmd *command.Command, s *serveOptions, server *perf.Server) error {
	for _, name := range []string{"listen", "port", "secret-file", "max-clients", "quiet"} {
		if cmd.Flags().Changed(name) {
			return command.Usagef("--stdio and --%s exclude each other: nothing listens, and there is one client", name)
		}
	}
	if info, err := os.Stdin.Stat(); err != nil || info.Mode()&os.ModeCharDevice != 0 {
		return command.Usagef("--stdio: standard input is a terminal or a device, allowed: a pipe or socket, as of \"verbs mesh run --via\"")
	}
	out, err := terminal.Raw()
	if err != nil {
		return command.Usagef("--stdio: %w", err)
	}
	server.MaxMemory = cmp.Or(s.memory<<20, perf.DefaultMaxMemory())
	r, w := io.Pipe() // ends when it is closed, as a read of a file might not
	go func() {
		_, err := io.Copy(w, os.Stdin)
		w.CloseWithError(err)
	}()
	return server.ServePipe(cmd.Context(), struct {
		io.Reader
		io.Writer
		io.Closer
	}{r, out, r})
}

// meshOptions are the flags of "verbs mesh run".
type meshOptions struct {
	run        mesh.Run
	file       string
	secretFile string
	page, svg  string
	via        string
	verbs      string
	json       bool
	latency    time.Duration
	p99        time.Duration
	bandwidth  string
	devices    string
	types      string
}

func newMeshRun() *command.Command {
	var o meshOptions
	cmd := &command.Command{
		Use:   "run [flags] [HOST...]",
		Short: "Test each pair of hosts, and report what is worse than the rest",
		Long: `Each HOST runs "verbs mesh serve". It is a name or an address, with :PORT if the port is not 18517.
The secret is the first line of --secret-file, or the environment variable
` + secretEnv + `. A good one is the output of "openssl rand -hex 32".

With --via nothing has to run before, no port is opened, and there is no secret. The program that
already reaches the hosts, such as ssh, starts "verbs mesh serve --stdio" on each HOST and carries
its standard input and output; only the tests themselves go from host to host. {host} stands for the
HOST. The words of --via are split at spaces, and quotes keep spaces; no shell reads them. The
program has no terminal, so it cannot ask for a password. "verbs" must have the same version there.

Hosts are tested in pairs, in both directions, on each device that both have under the same name,
with the tests send-lat and send-bw of "verbs perf". Pairs without a common host are tested at the
same time. A measurement that crosses a threshold is repeated while nothing else runs, and the
better values count. The thresholds that are relative to the fleet find a bad host among four and
more; of fewer hosts it has most of the links, so use absolute ones.

A finding names the largest thing that explains its measurements: a host, a device of a host, a rail
(the devices of one name of all hosts), or a link. Times are half of the way there and back, so a
slow direction shows in both. If the run is interrupted, the report has what was measured. Loss of
datagrams shows in the direction in which they are sent. Some devices, such as mlx5, derive the UDP
source port of RoCE v2 from the flow label: several of them (--flow-labels) take several paths
through a network. With others they change nothing.`,
		Example: `  verbs mesh run node1 node2 node3 node4 --secret-file /etc/verbs-mesh.secret
  verbs mesh run --file hosts.txt --json | jq '.findings[]'
  verbs mesh run --file hosts.txt --html mesh.html --flow-labels 1,2,3,4 --min-bandwidth 90
  verbs mesh run --file hosts.txt --svg mesh.svg
  verbs mesh run --via 'ssh {host}' node1 node2 node3 node4
  verbs mesh run --via 'ssh -o BatchMode=yes root@{host}' --verbs-path /opt/verbs --file hosts.txt
  verbs mesh run --via 'kubectl exec -i {host} --' pod-a pod-b`,
		Exit: "  0  all links are well\n  1  there is a finding, or a failure; standard error has the reason",
		Run:  func(cmd *command.Command, args []string) error { return o.do(cmd, args) },
	}
	f, r := cmd.Flags(), &o.run
	f.StringVar(&o.file, "file", "", "read hosts from `FILE`, one a line; # begins a comment")
	f.StringVar(&o.secretFile, "secret-file", "", "`FILE` with the secret of the fleet in its first line (default "+secretEnv+")")
	f.StringVar(&o.via, "via", "", "start the servers by this `COMMAND`, such as 'ssh {host}', instead of connecting to them")
	f.StringVar(&o.verbs, "verbs-path", "verbs", "run this `COMMAND` on the hosts of --via: verbs, with words before it such as sudo")
	f.StringVar(&o.devices, "devs", "", "test only the devices of these `NAMES`, separated by commas (default all)")
	f.StringVar(&o.types, "types", "rc,ud", "`TYPES` of queue pairs, separated by commas: rc, ud")
	f.IntSliceVar(&r.FlowLabels, "flow-labels", []int{0}, "test with each of these flow `LABELS`, separated by commas")
	f.DurationVar(&o.latency, "max-latency", 0, "report a median latency above this `TIME` (default no limit)")
	f.DurationVar(&o.p99, "max-p99", 0, "report a latency of 99 % of the messages above this `TIME` (default no limit)")
	f.StringVar(&o.bandwidth, "min-bandwidth", "", "report a bandwidth under `N` Gb per second (default no limit)")
	f.Float64Var(&r.Thresholds.MaxLoss, "max-loss", 0.1, "report a loss of datagrams above `N` percent")
	f.Float64Var(&r.Thresholds.LatencyRatio, "latency-ratio", 3, "report a median latency above `N` times the median of the fleet")
	f.Float64Var(&r.Thresholds.BandwidthRatio, "bandwidth-ratio", 0.5, "report a bandwidth under `N` times the median of the fleet")
	command.NumberVar(f, &r.AtOnce, "at-once", "", 0, 1, mesh.MaxHosts, "test up to `N` pairs at the same time")
	command.DefaultIs(f, "at-once", "all that have no host in common")
	command.NumberVar(f, &r.Repeat, "repeat", "", 1, 0, 10, "measure what crosses a threshold up to `N` times again")
	command.NumberVar(f, &r.Iterations, "iterations", "n", 1000, 1, 1_000_000, "count `N` messages of each test of latency")
	command.NumberVar(f, &r.Messages, "messages", "", 1000, 1, 1_000_000, "count `N` messages of each test of bandwidth")
	command.NumberVar(f, &r.Size, "msg-size", "", perf.DefaultSizeBW, 1, math.MaxInt32, "size of a message of bandwidth in `BYTES`; over ud at most the MTU")
	f.BoolVarP(&r.Events, "events", "e", false, "sleep until a completion event instead of polling, on both sides")
	f.DurationVar(&r.Timeout, "timeout", 10*time.Second, "give up a test when nothing completes for this `TIME`")
	f.StringVar(&o.page, "html", "", "write a page with heat maps to `FILE`, which only its owner can read")
	f.StringVar(&o.svg, "svg", "", "draw the heat maps into `FILE`, which only its owner can read")
	command.JSONFlag(cmd, &o.json)
	return cmd
}

// hosts returns the hosts of the command line and of the file.
func (o *meshOptions) hosts(cmd *command.Command, args []string) (all []mesh.Host, err error) {
	names := slices.Clone(args)
	if o.file != "" {
		b, err := cmd.ReadFile(o.file)
		if err != nil {
			return nil, fmt.Errorf("--file: %w", err)
		}
		for _, line := range strings.Split(string(b), "\n") {
			line, _, _ := strings.Cut(line, "#")
			names = append(names, strings.Fields(line)...)
		}
	}
	for _, name := range names {
		parse := mesh.ParseHost
		if o.run.Via != nil {
			parse = o.run.Via.ParseHost
		}
		h, err := parse(name)
		if err != nil {
			return nil, command.UsageError{Err: err}
		}
		if slices.ContainsFunc(all, func(o mesh.Host) bool { return o.Addr == h.Addr && o.Port == h.Port }) {
			return nil, command.Usagef("the host %s is there twice", peertext.Quote(name))
		}
		all = append(all, h)
	}
	if n := len(all); n < 2 || n > mesh.MaxHosts {
		return nil, command.Usagef("the number of hosts is %d, allowed: 2 to %d, as arguments or in --file", n, mesh.MaxHosts)
	}
	return all, nil
}

// check checks the flags.
func (o *meshOptions) check(cmd *command.Command) (err error) {
	r := &o.run
	if o.devices != "" {
		r.Rails = strings.Split(o.devices, ",")
	}
	r.Types = strings.Split(o.types, ",")
	for _, typ := range r.Types {
		if typ != perf.RC && typ != perf.UD {
			return command.Usagef("--types has %s, allowed: rc, ud", peertext.Quote(typ))
		}
	}
	if n := len(r.FlowLabels); n > mesh.MaxFlowLabels {
		return command.Usagef("--flow-labels has %d labels, allowed: 1 to %d", n, mesh.MaxFlowLabels)
	}
	for _, l := range r.FlowLabels {
		if l < 0 || l > 1<<20-1 {
			return command.Usagef("--flow-labels has %d, allowed: 0 to %d", l, 1<<20-1)
		}
	}
	if r.Timeout <= 0 || r.Timeout > time.Hour {
		return command.Usagef("--timeout is %s, allowed: more than 0, up to 1h", r.Timeout)
	}
	t := &r.Thresholds
	for _, f := range []struct {
		name  string
		given time.Duration
		to    *float64
	}{{"max-latency", o.latency, &t.MaxLatency}, {"max-p99", o.p99, &t.MaxP99}} {
		if cmd.Flags().Changed(f.name) && f.given <= 0 {
			return command.Usagef("--%s is %s, allowed: a time above 0", f.name, f.given)
		}
		*f.to = float64(f.given) / float64(time.Microsecond)
	}
	if o.bandwidth != "" {
		if t.MinBandwidth, err = strconv.ParseFloat(o.bandwidth, 64); err != nil || !(t.MinBandwidth > 0) {
			return command.Usagef("--min-bandwidth is %s, allowed: a number above 0, in Gb per second", peertext.Quote(o.bandwidth))
		}
	}
	if err := t.Validate(); err != nil {
		return command.UsageError{Err: err}
	}
	switch changed := cmd.Flags().Changed; {
	case !changed("via") && changed("verbs-path"):
		return command.Usagef("--verbs-path is %s, allowed: only with --via, which starts it", peertext.Quote(o.verbs))
	case changed("via") && changed("secret-file"):
		return command.Usagef("--secret-file and --via exclude each other: what carries the connection has its own secrets")
	case o.svg != "" && o.svg == o.page:
		return command.Usagef("--svg and --html are both %s, allowed: two files", peertext.Quote(o.svg))
	case changed("via"):
		if r.Via, err = mesh.NewVia(o.via, o.verbs); err != nil {
			return command.UsageError{Err: err}
		}
	}
	return nil
}

// errFindings makes the exit status 1 of a run with findings.
var errFindings = errors.New("not all links are well")

// do runs the tests and prints the report.
func (o *meshOptions) do(cmd *command.Command, args []string) (err error) {
	r := &o.run
	if err := o.check(cmd); err != nil {
		return err
	}
	if r.Hosts, err = o.hosts(cmd, args); err != nil {
		return err
	}
	if r.Via == nil {
		if r.Secret, err = readSecret(cmd, o.secretFile); err != nil {
			return err
		}
	}
	files := []struct {
		flag, name string
		write      func(*mesh.Report, io.Writer) error
		file       *os.File
	}{{"html", o.page, (*mesh.Report).HTML, nil}, {"svg", o.svg, (*mesh.Report).SVG, nil}}
	for i := range files { // before all the work
		if f := &files[i]; f.name != "" {
			if f.file, err = privatefile.Create(f.name); err != nil {
				return fmt.Errorf("--%s: %w", f.flag, err)
			}
			defer f.file.Close()
		}
	}
	if log := cmd.Err(); log.IsTerminal() {
		r.Progress = func(done, total int) { log.Rewrite("%d of %d pairs", done, total) }
	}
	rep, err := r.Do(cmd.Context())
	if r.Progress != nil {
		cmd.Err().Rewrite("")
	}
	if errors.Is(err, context.Canceled) {
		err = errors.New("interrupted")
	}
	if rep == nil { // nothing is measured
		return err
	}
	for _, f := range files {
		if f.file == nil {
			continue
		}
		if ferr := errors.Join(f.write(rep, f.file), f.file.Close()); ferr != nil {
			err = errors.Join(err, fmt.Errorf("--%s: %w", f.flag, ferr))
		}
	}
	if o.json {
		err = errors.Join(err, command.PrintJSON(cmd.Out(), rep))
	} else {
		err = errors.Join(err, rep.Print(cmd.Out().Text()))
	}
	if err == nil && !rep.OK {
		err = errFindings
	}
	return err
}
