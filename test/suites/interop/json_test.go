package interop

import (
	"bytes"
	"encoding/json"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"testing"

	"github.com/goverbs/goverbs/netlinkrdma"
	"github.com/goverbs/goverbs/test/internal/program"
	"github.com/goverbs/goverbs/test/testenv"
)

// verbsJSON runs a command, and returns what it prints as JSON. Numbers keep their text.
func verbsJSON(t *testing.T, args ...string) any {
	t.Helper()
	out, err := exec.CommandContext(timed(t), os.Getenv(VerbsEnv), args...).Output()
	if err != nil {
		t.Fatalf("verbs %q: %v\n%s", args, err, out)
	}
	return parseJSON(t, out)
}

// parseJSON returns the only JSON value of a text.
func parseJSON(t *testing.T, text []byte) (v any) {
	t.Helper()
	d := json.NewDecoder(bytes.NewReader(text))
	d.UseNumber()
	if err := d.Decode(&v); err != nil || d.More() {
		t.Fatalf("not one JSON value: %v\n%s", err, text)
	}
	return v
}

// documented are the keys that "verbs help json" describes for a command: whether a path may be left out.
type documented map[string]bool

// readDocumented returns the keys of each command.
func readDocumented(t *testing.T) map[string]documented {
	t.Helper()
	out, err := exec.CommandContext(timed(t), os.Getenv(VerbsEnv), "help", "json").Output()
	must(t, err)
	keyLine := regexp.MustCompile(`^ {4}( {0,10})([a-z][a-z0-9_]*)(\?)? +\S`)
	all := map[string]documented{}
	var command string
	parents := map[int]string{} // by indentation
	for line := range strings.Lines(string(out)) {
		if name, ok := strings.CutPrefix(line, "## verbs "); ok {
			command = strings.TrimSpace(name)
			all[command] = documented{}
		} else if m := keyLine.FindStringSubmatch(line); m != nil {
			indent := len(m[1])
			parents[indent] = m[2]
			if indent > 0 {
				parents[indent] = parents[indent-2] + "." + m[2]
			}
			all[command][parents[indent]] = m[3] != ""
		}
	}
	return all
}

// check compares the keys of a value with the documented ones.
func (d documented) check(t *testing.T, v any, path string) {
	t.Helper()
	switch v := v.(type) {
	case []any:
		for _, element := range v {
			d.check(t, element, path)
		}
	case map[string]any:
		if strings.HasSuffix(path, "driver_attributes") {
			return // the driver chooses its keys
		}
		prefix := strings.TrimPrefix(path+".", ".")
		for key, inner := range v {
			if _, ok := d[prefix+key]; !ok {
				t.Errorf("%s%s is not documented", prefix, key)
			}
			d.check(t, inner, prefix+key)
		}
		for key, optional := range d {
			name, ok := strings.CutPrefix(key, prefix)
			if _, printed := v[name]; ok && !strings.Contains(name, ".") && !optional && !printed {
				t.Errorf("%s is missing", key)
			}
		}
	}
}

// TestJSONKeys: "verbs help json" describes the keys that the commands print.
func TestJSONKeys(t *testing.T) {
	testenv.Guest(t)
	doc := readDocumented(t)
	described := func(t *testing.T, command string, v any) {
		if len(doc[command]) == 0 {
			t.Fatal("there is no description")
		}
		doc[command].check(t, v, "")
	}
	check := func(command string, v any) {
		t.Run(command, func(t *testing.T) { described(t, command, v) })
	}
	check("devices", verbsJSON(t, "devices", "--json"))
	check("info", verbsJSON(t, "info", "--json"))
	check("stat", verbsJSON(t, "stat", "--json"))
	check("stat mr", verbsJSON(t, "stat", "mr", "--json"))
	check("doctor", verbsJSON(t, "doctor", "--json", dev0))

	server, port := perfServe(t)
	for _, test := range []string{"send-lat", "send-bw"} {
		args := perfLine(port, test, "-n", "10", "--json")
		check("perf", verbsJSON(t, args[1:]...))
	}
	check("res", verbsJSON(t, "res", "--json"))
	server.Signal(os.Interrupt)
	server.Wait(t)

	ours, _ := rpings()
	number, cmport := cmPort()
	pinger := program.Launch(t, line(ours, "-s", "--json", "-a", ServerAddr, "-p", cmport)...)
	serving(t, pinger, netlinkrdma.PortSpaceTCP, number)
	check("res", verbsJSON(t, "res", "--json"))
	check("rping", verbsJSON(t, "rping", "-c", "-C", "3", "--json", "-a", ServerAddr, "-p", cmport))
	check("rping", parseJSON(t, []byte(pinger.Wait(t))))

	t.Run("pingpong", func(t *testing.T) {
		testenv.NeedsIB(t, "manual QP state changes")
		number, port := cmPort()
		waits := program.Launch(t, append(Verbs(), "--json", "-n", "10", "-p", port)...)
		must(t, waitListen(timed(t), int(number), nil))
		described(t, "pingpong", verbsJSON(t, "pingpong", "--json", "-n", "10", "-p", port, ServerAddr))
		described(t, "pingpong", parseJSON(t, []byte(waits.Wait(t))))
	})
}

// TestUsageStatus: a mistake on the command line has the exit status 2, and a failure has 1.
func TestUsageStatus(t *testing.T) {
	testenv.Guest(t)
	for args, want := range map[string]int{
		"info " + dev0: 0, "info nosuch0": 1, "info a b": 2, "bogus": 2, "perf bogus": 2, "pingpong --port 0": 2, "perf send-lat": 2,
		"rping -c": 2, "doctor nosuch0": 1, "res nosuch0": 1, "stat nosuch0": 1, "pingpong --dev nosuch0 " + ServerAddr: 1,
	} {
		cmd := exec.CommandContext(timed(t), os.Getenv(VerbsEnv), strings.Fields(args)...)
		out, err := cmd.CombinedOutput()
		if got := cmd.ProcessState.ExitCode(); got != want {
			t.Errorf("verbs %s: status %d, %v, want %d\n%s", args, got, err, want, out)
		}
		if want != 0 && !strings.Contains(string(out), "verbs: ") && !strings.HasPrefix(args, "doctor") {
			t.Errorf("verbs %s does not say why:\n%s", args, out)
		}
	}
}
