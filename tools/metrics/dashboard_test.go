package metrics

import (
	"encoding/json"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// dashboard is what the test needs of dashboard.json.
type dashboard struct {
	Panels []struct {
		ID      int
		Type    string
		Title   string
		GridPos struct{ X, Y, W, H int }
		Targets []struct{ Expr string }
	}
	Templating struct {
		List []struct {
			Name, Definition string
		}
	}
}

// TestDashboard: the expressions of the dashboard are about metrics and labels that there are, with variables that
// are defined; every metric is shown but the hidden ones; and no two panels overlap.
func TestDashboard(t *testing.T) {
	text, err := os.ReadFile("dashboard.json")
	if err != nil {
		t.Fatal(err)
	}
	var d dashboard
	if err := json.Unmarshal(text, &d); err != nil {
		t.Fatal(err)
	}
	variables := []string{"__rate_interval"}
	var all []string
	for _, v := range d.Templating.List {
		variables = append(variables, v.Name)
		all = append(all, v.Definition)
	}
	for i, p := range d.Panels {
		if len(p.Targets) == 0 && p.Type != "row" {
			t.Errorf("%s has no expression", p.Title)
		}
		for _, target := range p.Targets {
			all = append(all, target.Expr)
		}
		for _, o := range d.Panels[:i] {
			a, b := p.GridPos, o.GridPos
			if p.ID == o.ID || a.X < b.X+b.W && b.X < a.X+a.W && a.Y < b.Y+b.H && b.Y < a.Y+a.H {
				t.Errorf("%s and %s have one ID or overlap", p.Title, o.Title)
			}
		}
	}
	name, label, variable := regexp.MustCompile(`\brdma_[a-z_]+`), regexp.MustCompile(`([a-z_]+)(=~|=|!=|!~)"`), regexp.MustCompile(`\$(\w+)`)
	shown := map[string]bool{}
	for _, expr := range all {
		var labels []string
		for _, n := range name.FindAllString(expr, -1) {
			i := slices.IndexFunc(families[:], func(f Family) bool {
				return f.Name == n || f.Type == Histogram && f.Name+"_bucket" == n
			})
			if i < 0 {
				t.Errorf("there is no metric %s: %s", n, expr)
				continue
			}
			shown[families[i].Name] = true
			labels = append(labels, families[i].Labels...)
		}
		for _, m := range label.FindAllStringSubmatch(expr, -1) {
			if m[1] != "instance" && !slices.Contains(labels, m[1]) {
				t.Errorf("there is no label %s: %s", m[1], expr)
			}
		}
		for _, m := range variable.FindAllStringSubmatch(expr, -1) {
			if !slices.Contains(variables, m[1]) {
				t.Errorf("there is no variable %s: %s", m[1], expr)
			}
		}
	}
	hidden := []string{"rdma_probe_sessions", "rdma_port_physical_state", "rdma_port_lanes", "rdma_port_mtu_bytes", "rdma_doctor_works", "rdma_doctor_duration_seconds", "rdma_doctor_last_run_timestamp_seconds"}
	for _, f := range families {
		if shown[f.Name] == slices.Contains(hidden, f.Name) {
			t.Errorf("%s: shown %v", f.Name, shown[f.Name])
		}
	}
	if strings.Count(string(text), `"expr"`) < 15 {
		t.Error("expressions are missing")
	}
}
