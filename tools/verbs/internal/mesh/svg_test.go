package mesh

import (
	"bytes"
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/goverbs/goverbs/tools/verbs/internal/svg"
)

// pictureFleet is a fleet with bad links: each fourth host is slow, some links lose or fail, and one host is down.
func pictureFleet(hosts int) *Report {
	r := &Report{
		Time: time.Date(2026, 11, 30, 16, 5, 0, 0, time.UTC), Options: Options{Types: []string{"rc"}, FlowLabels: []int{0}, Iterations: 1000, Messages: 1000, Size: 65536},
		Thresholds: Thresholds{MaxLoss: 0.1, LatencyRatio: 3, BandwidthRatio: 0.5},
	}
	for i := range hosts {
		r.Hosts = append(r.Hosts, HostReport{Name: fmt.Sprintf("node-%d.example", i+1), Rails: []RailReport{{Name: "mlx5_0", Driver: "mlx5"}}})
	}
	if hosts > 4 {
		r.Hosts[hosts-1].Error = "it is down"
	}
	for from := range hosts {
		for to := range hosts {
			if from == to || r.Hosts[from].Error != "" || r.Hosts[to].Error != "" {
				continue
			}
			bw := 90 + float64((from*7+to*3)%10)
			m := Measurement{From: r.Hosts[from].Name, To: r.Hosts[to].Name, Rail: "mlx5_0", Type: "rc", from: from, to: to,
				Latency: &Latency{Min: 1, Median: 2 + float64((from*5+to)%7)/5, P99: 5, P999: 6, Max: 9}, Bandwidth: &bw}
			switch {
			case from == 1 && to == 0:
				m.Latency, m.Bandwidth, m.Errors = nil, nil, []string{"send-lat: no route", "send-bw: no route"}
			case from == 2:
				m.Latency.Median, bw = 9.25, 40
			case to == 3:
				m.Latency.Median, bw = 4.5, 60
			}
			r.Measurements = append(r.Measurements, m)
		}
	}
	r.judge()
	r.Findings = r.findings()
	return r
}

// seen is what is in a picture.
type seen struct {
	width, height float64
	texts         []string
	cells         int // of filled paths
	crosses, dots int
}

// look reads a picture, all of whose texts must be within it.
func look(t *testing.T, picture []byte) (s seen) {
	t.Helper()
	dec := xml.NewDecoder(bytes.NewReader(picture))
	var x, y float64
	anchor, turned := "", false
	for {
		tok, err := dec.Token()
		if errors.Is(err, io.EOF) {
			return s
		}
		if err != nil {
			t.Fatalf("no XML: %v", err)
		}
		switch tok := tok.(type) {
		case xml.StartElement:
			at := map[string]string{}
			for _, a := range tok.Attr {
				at[a.Name.Local] = a.Value
			}
			number := func(name string) float64 { v, _ := strconv.ParseFloat(at[name], 64); return v }
			switch tok.Name.Local {
			case "svg":
				s.width, s.height = number("width"), number("height")
			case "text":
				x, y, anchor, turned = number("x"), number("y"), at["text-anchor"], at["transform"] != ""
			case "path":
				if at["fill"] != "" {
					s.cells += strings.Count(at["d"], "M")
				} else if strings.Contains(at["d"], "l") {
					s.crosses++
				}
			case "circle":
				s.dots++
			}
		case xml.CharData:
			text := strings.TrimSpace(string(tok))
			if text == "" {
				continue
			}
			s.texts = append(s.texts, text)
			long := float64(utf8.RuneCountInString(text)) * svg.CharWidth
			left, right, top := x, x+long, y-svg.TextSize
			switch {
			case turned:
				left, right, top = x-svg.TextSize, x, y-long
			case anchor == "end":
				left, right = x-long, x
			case anchor == "middle":
				left, right = x-long/2, x+long/2
			}
			if left < 0 || right > s.width || top < 0 || y > s.height {
				t.Errorf("%q is from %.0f to %.0f, %.0f to %.0f, outside of the picture of %.0f x %.0f", text, left, right, top, y, s.width, s.height)
			}
		}
	}
}

// TestSVG: the maps of small and large fleets have all cells, names, values and marks.
func TestSVG(t *testing.T) {
	for _, n := range []int{2, 4, 16, 64, 150} {
		t.Run(fmt.Sprint(n), func(t *testing.T) {
			r := pictureFleet(n)
			var b bytes.Buffer
			if err := r.SVG(&b); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(filepath.Join(t.ArtifactDir(), fmt.Sprintf("mesh-%d.svg", n)), b.Bytes(), 0o600); err != nil {
				t.Fatal(err)
			}
			s := look(t, b.Bytes())
			if s.cells != 2*n*n {
				t.Errorf("%d cells, want %d", s.cells, 2*n*n)
			}
			if s.crosses != 2*(1+1) { // of the failed pair, and of the legend, in both maps
				t.Errorf("%d crosses", s.crosses)
			}
			all := "\n" + strings.Join(s.texts, "\n") + "\n"
			want := []string{
				fmt.Sprintf("verbs mesh, 2026-11-30 16:05 UTC: %d hosts, findings: %d", n, len(r.Findings)), "devices mlx5_0 (mlx5)",
				"latency of 1000 messages, bandwidth of 1000 messages of 65536 bytes (ud: at most the MTU)",
				"mlx5_0, rc: median latency in µs, from row to column", "mlx5_0, rc: bandwidth in Gb/s, from row to column", "not tested",
				"from " + fmt.Sprintf("%.1f Gb/s", r.Medians[0].Bandwidth/1.25), "over " + fmt.Sprintf("%.2f µs", r.Medians[0].Latency*3),
			}
			if n <= valuesFor && n > 2 {
				want = append(want, "9.2!", "40.000!", "60.000", "! crosses a threshold")
			} else if n > valuesFor && (s.dots != 2*(n-1) || len(s.texts) > 4*n+60) { // the row of a slow host, with the legend
				t.Errorf("%d dots, %d texts", s.dots, len(s.texts))
			}
			for i := range r.Hosts {
				if h := &r.Hosts[i]; n <= 64 {
					want = append(want, map[bool]string{true: "× "}[h.Error != ""]+h.Name)
				}
			}
			for _, w := range want {
				if !strings.Contains(all, "\n"+w+"\n") {
					t.Errorf("%q is not in the picture", w)
				}
			}
		})
	}
}

// TestSVGHostile: names that are long or no text stay within the picture and its XML.
func TestSVGHostile(t *testing.T) {
	r := pictureFleet(4)
	evil := "</text><script>\x1b\xff&" + strings.Repeat("ä", 300)
	r.Hosts[1].Name, r.Hosts[0].Rails[0].Name = evil, evil
	for i := range r.Findings {
		r.Findings[i].Hosts = []string{evil, evil}
	}
	var b bytes.Buffer
	if err := r.SVG(&b); err != nil {
		t.Fatal(err)
	}
	look(t, b.Bytes())
	if bytes.Contains(b.Bytes(), []byte("<script")) {
		t.Error("a name breaks the picture")
	}
}

// TestHeat: a colour says how much worse than the median a value is, in both maps.
func TestHeat(t *testing.T) {
	r := &Report{Medians: []Median{{Type: "rc", Latency: 2, Bandwidth: 100}}}
	for _, c := range []struct {
		lat, bw float64
		want    int
	}{{1, 200, 0}, {2, 100, 0}, {2.6, 78, 1}, {3.5, 60, 2}, {5, 40, 3}, {7, 30, 4}, {1e9, 0, 4}} {
		m := &Measurement{Type: "rc", Latency: &Latency{Median: c.lat}, Bandwidth: &c.bw}
		if lat, bw := r.heat(table{typ: "rc"}, m), r.heat(table{typ: "rc", bandwidth: true}, m); lat != c.want || bw != c.want {
			t.Errorf("%v µs has colour %d, %v Gb/s %d, want %d", c.lat, lat, c.bw, bw, c.want)
		}
	}
	if r.heat(table{}, nil) != noHeat || r.heat(table{}, &Measurement{}) != noHeat {
		t.Error("what has no value has a colour")
	}
}
