package plot

import (
	"bytes"
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"

	"github.com/goverbs/goverbs/tools/verbs/internal/perf"
)

// sweep is a report of a test over all sizes, with figures that grow.
func sweep(op, metric string, slower int64) *perf.Report {
	r := &perf.Report{Schema: 1, Config: perf.Default(op, metric)}
	r.Test = r.Config.Name()
	for i, size := range perf.Sweep(1 << 20) {
		s := perf.Size{Size: size}
		if metric == perf.Lat {
			at := slower * int64(10_000+size)
			s.Latency = perf.NewLatency([]int64{at, at, at + 500, at + 3000, at + 100_000})
		} else {
			b := perf.Bandwidth{MiBPerSecond: float64(slower) * float64(i+1) * 10}
			s.Bandwidth = &b
		}
		r.Results = append(r.Results, s)
	}
	return r
}

// one is a report of one size.
func one(op, metric string) *perf.Report {
	r := sweep(op, metric, 1)
	r.Results = r.Results[3:4]
	if metric == perf.Lat {
		var ns []int64
		for v := int64(10_000); len(ns) < 30; v += v / 10 {
			ns = append(ns, v)
		}
		r.Results[0].Latency = perf.NewLatency(ns)
	}
	return r
}

// drawn is what is in an SVG.
type drawn struct {
	texts  []string
	curves int // with at least so many points as asked for
}

// read reads an SVG, all of which must be XML.
func read(t *testing.T, svg []byte, points int) (d drawn) {
	t.Helper()
	dec := xml.NewDecoder(bytes.NewReader(svg))
	inText := false
	for {
		tok, err := dec.Token()
		if errors.Is(err, io.EOF) {
			return d
		}
		if err != nil {
			t.Fatalf("no XML: %v", err)
		}
		switch tok := tok.(type) {
		case xml.StartElement:
			inText = tok.Name.Local == "text"
			for _, a := range tok.Attr {
				if tok.Name.Local != "polyline" || a.Name.Local != "points" {
					continue
				}
				at := strings.Fields(a.Value)
				for _, p := range at {
					var x, y float64
					if _, err := fmt.Sscanf(p, "%f,%f", &x, &y); err != nil || x < left || x > right || y < top || y > bottom {
						t.Errorf("a point is %q, not between the axes: %v", p, err)
					}
				}
				if len(at) >= points {
					d.curves++
				}
			}
		case xml.EndElement:
			inText = false
		case xml.CharData:
			if inText {
				d.texts = append(d.texts, string(tok))
			}
		}
	}
}

// TestWrite looks for the curves and their names.
func TestWrite(t *testing.T) {
	for name, c := range map[string]struct {
		reports []Named
		curves  int
		points  int
		texts   []string
	}{
		"latency":      {[]Named{{"", sweep(perf.Send, perf.Lat, 1)}}, 3, 20, []string{"Latency", "send-lat rc median", "send-lat rc 99 %", "send-lat rc 99.9 %", "1M", "2", "µs"}},
		"overlay":      {[]Named{{"now", sweep(perf.Send, perf.Lat, 1)}, {"a<b&c", sweep(perf.Read, perf.Lat, 3)}}, 6, 20, []string{"read-lat rc median (a<b&c)", "send-lat rc 99 % (now)"}},
		"bandwidth":    {[]Named{{"", sweep(perf.Write, perf.BW, 1)}, {"before", sweep(perf.Write, perf.BW, 2)}}, 2, 20, []string{"Bandwidth", "MiB/s", "write-bw rc MiB/s (before)", "64K", "0", "400"}},
		"distribution": {[]Named{{"", one(perf.Atomic, perf.Lat)}}, 1, 31, []string{"Latency of 16 bytes", "90 %", "atomic-lat rc latency"}},
		"one size":     {[]Named{{"", one(perf.Read, perf.BW)}}, 0, 20, []string{"read-bw rc MiB/s", "16"}},
	} {
		t.Run(name, func(t *testing.T) {
			var svg bytes.Buffer
			if err := Write(&svg, c.reports...); err != nil {
				t.Fatal(err)
			}
			d := read(t, svg.Bytes(), c.points)
			if d.curves != c.curves {
				t.Errorf("%d curves of %d points, want %d", d.curves, c.points, c.curves)
			}
			all := strings.Join(d.texts, "\n")
			for _, want := range c.texts {
				if !strings.Contains("\n"+all+"\n", "\n"+want+"\n") {
					t.Errorf("%q is not in the picture:\n%s", want, all)
				}
			}
		})
	}
}

// TestFigures: a file with figures that no test has measured is refused, by the field that is wrong.
func TestFigures(t *testing.T) {
	for want, text := range map[string]string{
		`metric is "jitter", allowed: lat, bw`:          `{"metric":"jitter"},"results":[{"size":2}]`,
		"histogram has count 1, allowed: 1 and more, 0": `{"metric":"lat"},"results":[{"size":2,"latency":{"samples":0,"histogram":[{"count":1}]}}]`,
		"histogram has count 5":                         `{"metric":"lat"},"results":[{"size":2,"latency":{"samples":1,"histogram":[{"count":5}]}}]`,
		"histogram has count -5":                        `{"metric":"lat"},"results":[{"size":2,"latency":{"samples":1,"histogram":[{"count":-5}]}}]`,
		"samples is 2, and the histogram has 1":         `{"metric":"lat"},"results":[{"size":2,"latency":{"samples":2,"histogram":[{"count":1}]}}]`,
		"p99_us is 1e+300, allowed: 0 to 1e+15":         `{"metric":"lat"},"results":[{"size":2,"latency":{"samples":1,"p99_us":1e300,"histogram":[{"count":1}]}}]`,
		"mib_per_s is -1, allowed: 0 to":                `{"metric":"bw"},"results":[{"size":2,"bandwidth":{"mib_per_s":-1}}]`,
		"mib_per_s is 1.79":                             `{"metric":"bw"},"results":[{"size":2,"bandwidth":{"mib_per_s":1.7976931348623157e308}}]`,
	} {
		r, err := perf.ReadReport(strings.NewReader(`{"schema":1,"config":` + text + "}"))
		if err != nil {
			t.Fatal(err)
		}
		if err := Check(Named{"old.json", r}); err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), "old.json") {
			t.Errorf("error is %v, want %q", err, want)
		}
	}
}

func TestRefused(t *testing.T) {
	empty := one(perf.Send, perf.Lat)
	empty.Results[0].Latency = nil
	for want, reports := range map[string][]Named{
		"nothing to draw":     nil,
		"no axis in common":   {{"", one(perf.Send, perf.Lat)}, {"old.json", one(perf.Send, perf.BW)}},
		"has no lat in it":    {{"", empty}},
		"old.json: the resul": {{"", one(perf.Send, perf.Lat)}, {"old.json", empty}},
	} {
		if err := Write(io.Discard, reports...); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error is %v, want %q", err, want)
		}
	}
	for file, allowed := range map[string]bool{"a.svg": true, "/x/B.SVG": true, "a.png": false, "svg": false} {
		if err := CheckFile(file); (err == nil) != allowed {
			t.Errorf("%s: %v", file, err)
		}
	}
}
