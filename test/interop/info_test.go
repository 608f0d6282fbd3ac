package interop

import (
	"bytes"
	"encoding/json"
	"os"
	"os/exec"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/goverbs/goverbs/test/testenv"
	"github.com/goverbs/goverbs/uverbs"
)

// TestInfoJSON: "verbs info --json" tells what the library knows of a device, its ports and their
// GIDs, and nothing else.
func TestInfoJSON(t *testing.T) {
	testenv.Guest(t)
	out, err := exec.CommandContext(timed(t), os.Getenv(VerbsEnv), "info", "--json", dev0).Output()
	if err != nil {
		t.Fatal(err)
	}
	type gid struct {
		Index  int    `json:"index"`
		GID    string `json:"gid"`
		Addr   string `json:"address"`
		Type   string `json:"type"`
		Netdev int    `json:"netdev_index,omitempty"`
	}
	type port struct {
		Port int             `json:"port"`
		Attr uverbs.PortAttr `json:"attributes"`
		GIDs []gid           `json:"gids"`
	}
	type device struct {
		Name   string            `json:"name"`
		Driver string            `json:"driver"`
		Attr   uverbs.DeviceAttr `json:"attributes"`
		Ports  []port            `json:"ports"`
	}
	var got []device
	d := json.NewDecoder(bytes.NewReader(out))
	d.DisallowUnknownFields()
	if err := d.Decode(&got); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}

	dev, err := uverbs.Open(dev0)
	if err != nil {
		t.Fatal(err)
	}
	defer dev.Close()
	want := device{Name: dev0, Driver: rig.Driver, Attr: dev.QueryDevice()}
	for n := 1; n <= int(want.Attr.PhysPortCount); n++ {
		attr, err := dev.QueryPort(uint8(n))
		if err != nil {
			t.Fatal(err)
		}
		table, err := dev.GIDTable(uint8(n))
		if err != nil {
			t.Fatal(err)
		}
		p := port{Port: n, Attr: attr}
		for _, e := range table {
			p.GIDs = append(p.GIDs, gid{e.Index, e.GID.String(), e.GID.Addr().String(), e.Type.String(), e.Netdev})
		}
		want.Ports = append(want.Ports, p)
	}
	if diff := cmp.Diff([]device{want}, got); diff != "" {
		t.Errorf("verbs info --json (-want +got):\n%s", diff)
	}
}
