package main

import (
	"bytes"
	"encoding/json"
	"maps"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/goverbs/goverbs/tools/health"
	"github.com/goverbs/goverbs/tools/verbs/internal/command"
	ibcommands "github.com/goverbs/goverbs/tools/verbs/internal/ib"
	"github.com/goverbs/goverbs/tools/verbs/internal/mesh"
	"github.com/goverbs/goverbs/tools/verbs/internal/perf"
	"github.com/goverbs/goverbs/tools/verbs/internal/pingpong"
	"github.com/goverbs/goverbs/tools/verbs/internal/rping"
	"github.com/goverbs/goverbs/tools/verbs/internal/top"
	"github.com/goverbs/goverbs/uverbs"
	"github.com/goverbs/goverbs/uverbs/ib"
	"github.com/goverbs/goverbs/uverbs/trace"
)

// keyLine is a line of JSON.md that describes a key.
var keyLine = regexp.MustCompile(`^ {4}( *)([a-z][a-z0-9_]*)(\?)?  ? *\S`)

// documentedKeys returns the keys of each command in JSON.md: their paths, with "?" after those that
// may be left out.
func documentedKeys(t *testing.T) map[string][]string {
	t.Helper()
	all := map[string][]string{}
	var command string
	var path []string
	var indents []int
	for line := range strings.Lines(jsonHelp) {
		if name, ok := strings.CutPrefix(line, "## verbs "); ok {
			command, path, indents = strings.TrimSpace(name), nil, nil
			continue
		}
		m := keyLine.FindStringSubmatch(line)
		if m == nil || len(m[1]) > 10 { // more is a text that goes on
			continue
		}
		for len(indents) > 0 && indents[len(indents)-1] >= len(m[1]) {
			indents, path = indents[:len(indents)-1], path[:len(path)-1]
		}
		indents, path = append(indents, len(m[1])), append(path, m[2])
		all[command] = append(all[command], strings.Join(path, ".")+m[3])
	}
	return all
}

// keysOf adds the paths of the keys of a type, with "?" after those that may be left out.
func keysOf(typ reflect.Type, prefix string) (keys []string) {
	for typ.Kind() == reflect.Pointer || typ.Kind() == reflect.Slice {
		typ = typ.Elem()
	}
	if typ.Kind() != reflect.Struct {
		return nil
	}
	for i := range typ.NumField() {
		f := typ.Field(i)
		if !inJSON(f) {
			continue
		}
		if f.Anonymous {
			keys = append(keys, keysOf(f.Type, prefix)...)
			continue
		}
		name, options, _ := strings.Cut(f.Tag.Get("json"), ",")
		key := prefix + name
		keys = append(keys, key+map[bool]string{true: "?"}[options != ""])
		switch {
		case f.Type == reflect.TypeFor[attributes]() && prefix == "":
			keys = append(keys, attributeKeys(key, deviceAttributes(uverbs.DeviceAttr{}))...)
			for _, k := range attributeKeys(key, efaAttributes(uverbs.EFAAttr{})) {
				keys = append(keys, k+"?")
			}
		case f.Type == reflect.TypeFor[attributes]():
			keys = append(keys, attributeKeys(key, portAttributes(uverbs.PortAttr{}))...)
		default:
			keys = append(keys, keysOf(f.Type, key+".")...)
		}
	}
	return keys
}

// attributeKeys returns the paths of attributes.
func attributeKeys(prefix string, all attributes) (keys []string) {
	for _, a := range all {
		keys = append(keys, prefix+"."+a.name)
	}
	return keys
}

// printedJSON is what each command prints as JSON.
var printedJSON = map[string]any{
	"devices": deviceRow{}, "status": statusRow{}, "system": systemReport{}, "info": deviceReport{}, "res": resReport{}, "res frmr": frmrReport{}, "stat": statReport{}, "stat mr": statMRReport{}, "top": top.Report{}, "top --record": top.Reading{}, "events": eventRow{}, "doctor": health.Report{}, "doctor --watch": health.Change{},
	"pingpong": pingpong.Result{}, "rping": rping.Result{}, "perf": perf.Report{}, "mesh run": mesh.Report{}, "trace": trace.EventJSON{}, "trace --summary": trace.SummaryRow{},
	"ib status": ibcommands.StatusDevice{}, "ib ping": ibcommands.PingResult{}, "ib counters": ibcommands.CountersRow{}, "ib sm": ibcommands.SMRow{},
	"ib links": ibcommands.LinkRow{}, "ib discover": ibcommands.FabricReport{}, "ib trace": ibcommands.TraceReport{}, "ib check": []ibcommands.FindingRow{},
	"ib routes": ibcommands.RoutesRow{}, "ib port": ibcommands.PortRow{},
}

// TestJSONKeys: JSON.md describes the keys that the commands print, in their order.
func TestJSONKeys(t *testing.T) {
	documented := documentedKeys(t)
	if got, want := documented["ib sa"], slices.Sorted(maps.Keys(ibcommands.RecordKeys())); !slices.Equal(slices.Sorted(slices.Values(got)), want) {
		t.Errorf("JSON.md describes the records %q, want %q", got, want)
	}
	delete(documented, "ib sa") // see TestJSONRecords
	if got, want := slices.Sorted(maps.Keys(documented)), slices.Sorted(maps.Keys(printedJSON)); !slices.Equal(got, want) {
		t.Errorf("JSON.md describes %q, want %q", got, want)
	}
	for command, v := range printedJSON {
		if diff := cmp.Diff(documented[command], keysOf(reflect.TypeOf(v), "")); diff != "" {
			t.Errorf("verbs %s (-JSON.md +printed):\n%s", command, diff)
		}
	}
}

// inJSON reports whether a field of a struct is in JSON.
func inJSON(f reflect.StructField) bool {
	return (f.IsExported() || f.Anonymous) && f.Tag.Get("json") != "-"
}

// TestJSONNames: keys are in snake_case, and the name of a list ends in a plural.
func TestJSONNames(t *testing.T) {
	snake := regexp.MustCompile(`^[a-z]+[0-9]*(_[a-z0-9]+)*$`)
	singular := []string{"evidence", "fix", "histogram", "missing", "disabled"} // lists with other names
	var lists func(typ reflect.Type)
	lists = func(typ reflect.Type) {
		for typ.Kind() == reflect.Pointer || typ.Kind() == reflect.Slice {
			typ = typ.Elem()
		}
		if typ.Kind() != reflect.Struct || typ == reflect.TypeFor[attribute]() {
			return
		}
		for i := range typ.NumField() {
			f := typ.Field(i)
			if !inJSON(f) {
				continue
			}
			name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
			if f.IsExported() && !f.Anonymous && !snake.MatchString(name) {
				t.Errorf("%s.%s is %q in JSON", typ, f.Name, name)
			}
			list := f.Type.Kind() == reflect.Slice && f.Type != reflect.TypeFor[attributes]()
			if list && !strings.HasSuffix(name, "s") && !slices.Contains(singular, name) {
				t.Errorf("%s.%s is a list with the name %q", typ, f.Name, name)
			}
			lists(f.Type)
		}
	}
	for _, v := range printedJSON {
		lists(reflect.TypeOf(v))
	}
	for _, a := range append(deviceAttributes(uverbs.DeviceAttr{}), portAttributes(uverbs.PortAttr{})...) {
		if !snake.MatchString(a.name) {
			t.Errorf("the attribute %q", a.name)
		}
	}
}

// TestJSONInfo: GUIDs, states, masks and MTUs have the forms that JSON.md describes, and the
// attributes keep their order.
func TestJSONInfo(t *testing.T) {
	r := deviceReport{
		Device: "mlx5_0", Driver: "mlx5",
		Attributes: deviceAttributes(uverbs.DeviceAttr{NodeGUID: 0x5054_00ff_fe00_0001, CapFlags: 1<<63 | 0x36, MaxMRSize: 1<<64 - 1, AtomicCap: ib.AtomicHCA}),
		Ports: []portReport{{Port: 1, GIDs: []gidReport{}, Attributes: portAttributes(uverbs.PortAttr{
			State: ib.PortActive, ActiveMTU: ib.MTU4096, LinkLayer: ib.LinkLayerInfiniBand, PhysState: 5, ActiveWidth: 2, ActiveSpeed: 32})}},
	}
	var out bytes.Buffer
	if err := command.PrintJSON(&out, []deviceReport{r}); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		`"node_guid": "5054:00ff:fe00:0001"`, `"device_cap_flags": "0x00000036"`, `"device_cap_flags_ex": "0x8000000000000036"`,
		`"max_mr_size": 18446744073709551615`, `"atomic_cap": "HCA"`, `"state": "ACTIVE"`, `"active_mtu": 4096`, `"link_layer": "InfiniBand"`,
		`"phys_state": "LINK_UP"`, `"active_width": 4`, `"active_speed": 25`, `"gids": []`,
	} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("there is no %s in\n%s", want, out.String())
		}
	}
	var back []struct{ Attributes json.RawMessage }
	if err := json.Unmarshal(out.Bytes(), &back); err != nil {
		t.Fatal(err)
	}
	order := regexp.MustCompile(`"([a-z0-9_]+)":`).FindAllStringSubmatch(string(back[0].Attributes), -1)
	for i, a := range r.Attributes {
		if order[i][1] != a.name {
			t.Fatalf("attribute %d is %s, want %s", i, order[i][1], a.name)
		}
	}
}

// TestHelpJSON: a topic of the help describes the JSON.
func TestHelpJSON(t *testing.T) {
	out, err := run(t, "help", "json")
	if err != nil || out != jsonHelp {
		t.Errorf("verbs help json: %v\n%s", err, out)
	}
}

// TestJSONRecords: JSON.md lists the keys of the records of "verbs ib sa", in their order.
func TestJSONRecords(t *testing.T) {
	_, text, _ := strings.Cut(jsonHelp, "\n## verbs ib sa\n")
	text, _, _ = strings.Cut(text, "\n## ")
	got := map[string][]string{}
	var record string
	for line := range strings.Lines(text) {
		if words := strings.Fields(line); strings.HasPrefix(line, "     ") {
			got[record] = append(got[record], words...)
		} else if strings.HasPrefix(line, "    ") {
			record = words[0]
			got[record] = words[1:]
		}
	}
	if diff := cmp.Diff(ibcommands.RecordKeys(), got); diff != "" {
		t.Errorf("(-printed +JSON.md):\n%s", diff)
	}
}
