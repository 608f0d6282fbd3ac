package main

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/goverbs/goverbs/tools/verbs/internal/command"
	"github.com/goverbs/goverbs/tools/verbs/internal/pingpong"
)

// complete returns what the shell offers for the last of some words, without descriptions.
func complete(t *testing.T, device string, words ...string) []string {
	t.Helper()
	out, err := softRun(t, device, append([]string{"__completeNoDesc"}, words...)...)
	if err != nil {
		t.Fatalf("%q: %v\n%s", words, err, out)
	}
	all, rest, ok := strings.Cut(out, ":4\n") // 4 is for no files
	if !ok {
		t.Fatalf("%q: the shell would offer files:\n%s%s", words, all, rest)
	}
	return strings.Fields(all)
}

// TestComplete: the shell completes devices and ports, and the other words of a usage line.
func TestComplete(t *testing.T) {
	port := freeUDP(t)
	devices := fmt.Sprintf("127.0.0.1:%d,name=left 127.0.0.2:%d,name=right", port, port)
	both, ports := []string{"left", "right"}, []string{"left/1", "right/1"}
	for _, c := range []struct {
		words string // an underscore is an empty word
		want  []string
	}{
		{"info _", both},
		{"perf atomic-bw -A _", []string{"add", "swap"}},
		{"info left", []string{"left", "left/1", "right"}},
		{"info right/", []string{"right/1", "left"}},
		{"info left _", nil},
		{"status _", both},
		{"stat bind _", ports},
		{"stat bind left/1 _", []string{"lqpn"}},
		{"stat bind left/1 lqpn 5 _", []string{"cntn"}},
		{"stat auto left/1 _", []string{"type", "pid", "type,pid", "off"}},
		{"stat mr _", both},
		{"stat mr left _", []string{"mrn"}},
		{"stat enable left/1 _", []string{"none"}},
		{"res _", append(both[:2:2], "frmr")},
		{"res left _", nil},
		{"res --kinds _", []string{"cm_id", "cq", "ctx", "mr", "pd", "qp", "srq"}},
		{"res --kinds qp,cm_id,ctx,mr,pd,_", []string{"qp,cm_id,ctx,mr,pd,cq", "qp,cm_id,ctx,mr,pd,srq"}},
		{"res --filter poll-ctx=_", []string{"poll-ctx=DIRECT", "poll-ctx=SOFTIRQ", "poll-ctx=WORKQUEUE", "poll-ctx=UNBOUND_WORKQUEUE"}},
		{"res --filter=path-mig-state=ARMED,_", []string{"path-mig-state=ARMED,MIGRATED", "path-mig-state=ARMED,REARM"}},
		{"res --filter lqpn=_", nil},
		{"res frmr _", append(both[:2:2], "set")},
		{"res frmr set _", both},
		{"res frmr set left _", []string{"aging", "key", "pinned"}},
		{"dev add smi0 _", []string{"type"}},
		{"dev add smi0 type _", []string{"smi"}},
		{"dev add smi0 type smi parent _", both},
		{"dev delete _", both},
		{"doctor _", both},
		{"doctor left _", both},
		{"exporter _", both},
		{"exporter left _", both},
		{"link delete _", both},
		{"link add _", nil},
		{"link add new _", []string{"type"}},
		{"link add new type _", []string{"rxe", "siw"}},
		{"dev set _", both},
		{"dev set left _", []string{"adaptive-moderation", "name", "netns"}},
		{"dev set left netns _", nil},
		{"dev set left netns blue _", []string{"adaptive-moderation", "name"}},
		{"dev set left adaptive-moderation _", []string{"on", "off"}},
		{"system set netns _", []string{"shared", "exclusive"}},
		{"pingpong _", nil},
		{"top --dev _", both},
		{"top record _", nil},
		{"pingpong --dev _", both},
		{"pingpong -d _", both},
		{"pingpong --ib-port _", []string{"1"}},
		{"pingpong --dev nosuch --ib-port _", nil},
		{"pingpong --type _", pingpong.Types},
		{"pingpong --size _", nil},
		{"perf write-lat --type _", []string{"rc", "uc", "xrc", "dc", "srd"}},
		{"perf send-lat -d _", both},
		{"perf serve --dev left --ib-port _", []string{"1"}},
		{"mesh run --devs _", both},
		{"mesh run --devs lef", both},
		{"mesh run --devs right,_", []string{"right,left"}},
		{"mesh run --devs=left,", []string{"left,right"}},
		{"mesh run --devs left,right,_", nil},
		{"perf plot --kind _", []string{"sizes", "latency", "time"}},
		{"mesh run --types _", []string{"rc", "ud"}},
		{"mesh run --types ud,_", []string{"ud,rc"}},
		{"rping _", nil},
		{"ib port 7 3 width _", []string{"all", "1X", "4X", "8X", "12X", "2X"}},
		{"ib port 7 3 speed HDR,SDR,_", []string{"HDR,SDR,DDR", "HDR,SDR,QDR", "HDR,SDR,FDR", "HDR,SDR,EDR", "HDR,SDR,NDR", "HDR,SDR,XDR"}},
		{"ib routes 7 1 _", nil},
		{"help stat _", []string{"auto", "bind", "enable", "mr", "unbind"}},
		{"help perf send-lat _", nil},
		{"completion _", []string{"bash", "fish", "zsh"}},
		{"completion bash _", nil},
	} {
		var words []string
		for w := range strings.FieldsSeq(c.words) {
			words = append(words, strings.Trim(w, "_"))
		}
		got, want := complete(t, devices, words...), slices.Clone(c.want)
		// The shell leaves out what does not begin with the word.
		slices.Sort(got)
		slices.Sort(want)
		if !slices.Equal(got, want) {
			t.Errorf("verbs %s: the shell offers %q, want %q", c.words, got, want)
		}
	}
	if got := complete(t, devices, "link", "add", "new", "type", "rxe", "netdev", ""); !slices.Contains(got, "lo") {
		t.Errorf("the shell offers the interfaces %q", got)
	}
	if got := complete(t, devices, "res", "--filter", ""); !slices.Contains(got, "lqpn=") || !slices.Contains(got, "dst-addr=") || len(got) < 25 {
		t.Errorf("the shell offers the filters %q", got)
	}
	if got := complete(t, devices, "help", ""); !slices.Contains(got, "json") || !slices.Contains(got, "pingpong") {
		t.Errorf("the shell offers the help of %q", got)
	}
}

// TestCompleteFile: files are completed for flags and arguments that name one.
func TestCompleteFile(t *testing.T) {
	for _, line := range []string{"perf send-bw --plot", "top", "trace show --failed"} {
		out, err := run(t, append(strings.Fields("__complete "+line), "")...)
		if err != nil || !strings.HasPrefix(out, ":0\n") { // 0 is for files
			t.Errorf("verbs %s: %v\n%s", line, err, out)
		}
	}
}

// TestCompletionScripts: there is a script for each shell, which calls verbs.
func TestCompletionScripts(t *testing.T) {
	for _, shell := range []string{"bash", "fish", "zsh"} {
		out, err := run(t, "completion", shell)
		if err != nil || !strings.Contains(out, "__complete") {
			t.Errorf("%s: %v\n%.200s", shell, err, out)
		}
	}
	for args, want := range map[string]string{
		"completion":           "arguments are missing",
		"completion sh":        `the shell is "sh", allowed: bash, fish, zsh`,
		"completion bash more": "allowed: at most 1",
	} {
		if _, err := run(t, strings.Fields(args)...); exitStatus(err) != 2 || !strings.Contains(err.Error(), want) {
			t.Errorf("verbs %s: %v, want %q", args, err, want)
		}
	}
}

// TestNextArguments: what comes next follows from the usage line.
func TestNextArguments(t *testing.T) {
	const use = "set [flags] DEV [name NAME] [netns NAME|PATH|PID] [adaptive-moderation on|off]"
	for _, c := range []struct{ use, args, want string }{
		{use, "", "DEV"},
		{use, "rxe0", "adaptive-moderation,name,netns"},
		{use, "rxe0 name x", "adaptive-moderation,netns"},
		{use, "rxe0 netns", "NAME|PATH|PID"},
		{use, "rxe0 nonsense", ""},
		{"serve [flags]", "", ""},
		{"serve [flags]", "x", ""},
		{"doctor [flags] [DEV...]", "a b c", "DEV"},
		{"info [flags] [DEV[/PORT]]", "", "DEV[/PORT]"},
		{"stat [flags] [DEV] | COMMAND", "", "DEV"},
		{"port [flags] [DEST [PORT [ACTION...]]]", "", "DEST"},
		{"port [flags] [DEST [PORT [ACTION...]]]", "7", "PORT"},
		{"port [flags] [DEST [PORT [ACTION...]]]", "7 1 reset", "ACTION"},
		{"routes [flags] [DEST [FIRST [LAST]]]", "1 2 3", ""},
	} {
		if got := strings.Join(nextArguments(c.use, strings.Fields(c.args)), ","); got != c.want {
			t.Errorf("after %q of %q: %q, want %q", c.args, c.use, got, c.want)
		}
	}
	commands(tree(), func(cmd *command.Command) {
		if cmd.Complete == nil {
			t.Errorf("%s: arguments are not completed", cmd.Path())
		}
	})
}

// TestCompleteDescriptions: a description shows the name of a flag's value as the help does.
func TestCompleteDescriptions(t *testing.T) {
	for _, command := range [][]string{{"perf", "write-bw"}, {"pingpong"}, {"mesh", "run"}} {
		out, err := softRun(t, "auto", append(append([]string{"__complete"}, command...), "--")...)
		if err != nil || !strings.Contains(out, "--") || strings.Contains(out, "`") {
			t.Errorf("%q: %v\n%s", command, err, out)
		}
	}
}
