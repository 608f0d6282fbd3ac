package interop

import (
	"os/exec"
	"slices"
	"strings"
	"testing"

	"github.com/goverbs/goverbs/test/testenv"
)

// TestDevices: "verbs devices" and rdma-core's ibv_devices list the same devices, with the same GUIDs.
func TestDevices(t *testing.T) {
	testenv.Guest(t)
	out, err := exec.CommandContext(timed(t), "ibv_devices").CombinedOutput()
	must(t, err)
	var theirs, ours, inText []string
	for l := range strings.Lines(string(out)) { // two lines of a heading, then a name and a GUID
		if f := strings.Fields(l); len(f) == 2 && len(f[1]) == 16 && strings.Trim(f[1], "0123456789abcdef") == "" {
			theirs = append(theirs, f[0]+" "+f[1])
		}
	}
	text := verbs(t, "devices")
	for _, row := range verbsJSON(t, "devices", "--json").([]any) {
		row := row.(map[string]any)
		name, guid := row["device"].(string), row["node_guid"].(string)
		ours = append(ours, name+" "+strings.ReplaceAll(guid, ":", ""))
		if usable, _ := row["usable"].(bool); !usable {
			t.Errorf("%s cannot be used: %v", name, row["reason"])
		}
		for l := range strings.Lines(text) {
			if f := strings.Fields(l); len(f) > 1 && f[0] == name && slices.Contains(f, guid) {
				inText = append(inText, name)
			}
		}
	}
	slices.Sort(theirs)
	slices.Sort(ours)
	if len(theirs) < 2 || !slices.Equal(ours, theirs) || len(inText) != len(ours) {
		t.Errorf("ours are %q, of which the text has %q, ibv_devices has\n%s", ours, inText, out)
	}
}
