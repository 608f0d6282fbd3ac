package plot

import (
	"bytes"
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/goverbs/goverbs/tools/verbs/internal/perf"
	"github.com/goverbs/goverbs/tools/verbs/internal/svg"
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
	texts          []string
	curves         []int // points of each
	markers, spans int
	legend         float64 // the top of its first entry
	axes           float64 // the bottom of the last panel
}

// read reads an SVG, all of which must be XML. All points and markers are within the axes of a panel, and all texts
// within the picture.
func read(t *testing.T, picture []byte) (d drawn) {
	t.Helper()
	dec := xml.NewDecoder(bytes.NewReader(picture))
	var top, bottom, high, x, y float64
	anchor, inText, legend := "", false, false
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
			at := map[string]string{}
			for _, a := range tok.Attr {
				at[a.Name.Local] = a.Value
			}
			number := func(name string) float64 { v, _ := strconv.ParseFloat(at[name], 64); return v }
			within := func(x, y float64) {
				if x < left-0.1 || x > right+0.1 || y < top-0.1 || y > bottom+0.1 {
					t.Errorf("%.1f,%.1f is not between the axes", x, y)
				}
			}
			switch inText = tok.Name.Local == "text"; {
			case tok.Name.Local == "svg":
				high = number("height")
			case inText:
				x, y, anchor = number("x"), number("y"), at["text-anchor"]
			case at["class"] == "axes":
				top, bottom = number("y"), number("y")+number("height")
				d.axes = bottom
			case at["class"] == "legend":
				legend = true
			case at["class"] == "span":
				d.spans++
			case at["class"] == "marker" && !legend:
				d.markers++
				var x, y float64
				if _, err := fmt.Sscanf(at["d"], "M%f %f", &x, &y); err != nil {
					t.Errorf("a marker is %q: %v", at["d"], err)
				}
				within(x, y)
			case tok.Name.Local == "polyline":
				points := strings.Fields(at["points"])
				for _, p := range points {
					var x, y float64
					if _, err := fmt.Sscanf(p, "%f,%f", &x, &y); err != nil {
						t.Errorf("a point is %q: %v", p, err)
					}
					within(x, y)
				}
				d.curves = append(d.curves, len(points))
			}
		case xml.CharData:
			text := strings.TrimSpace(string(tok))
			if !inText || text == "" {
				continue
			}
			d.texts = append(d.texts, text)
			if legend && d.legend == 0 {
				d.legend = y - svg.TextSize
			}
			from, to := x, x+svg.Width(text, most)
			switch anchor {
			case "end":
				from, to = 2*x-to, x
			case "middle":
				from, to = x-(to-x)/2, x+(to-x)/2
			}
			if from < 0 || to > width || y < 0 || y > high {
				t.Errorf("%q is from %.0f to %.0f at %.0f, outside of the picture of %d x %.0f", text, from, to, y, width, high)
			}
		}
	}
}

// timed is a report with a time line that has a gap, and a port that is down in it.
func timed(slower int64) *perf.Report {
	r := one(perf.Write, perf.BW)
	r.Results[0].Size = 65536
	for i := range int64(50) {
		s := perf.Sample{Seconds: float64(i+1) / 2, Messages: (9000 + i*i%17*100) / slower}
		switch {
		case i >= 20 && i < 24:
			s.Messages, s.Down = 0, true
		case i == 40:
			s.Messages = 0
		}
		r.Results[0].Timeline = append(r.Results[0].Timeline, s)
	}
	return r
}

// jitter is a latency report of one size, with two heaps and a tail.
func jitter(seed, slower int64) *perf.Report {
	r := one(perf.Send, perf.Lat)
	var ns []int64
	random := rand.New(rand.NewPCG(uint64(seed), 1))
	for range 20000 {
		v := 9000 + 100*slower + int64(random.ExpFloat64()*800)
		if random.IntN(10) == 0 {
			v += 15000
		}
		ns = append(ns, v)
	}
	r.Results[0].Latency = perf.NewLatency(ns)
	return r
}

// told gives a report hosts, devices, a date and options.
func told(r *perf.Report) *perf.Report {
	r.Time = time.Date(2026, 11, 30, 16, 5, 0, 0, time.UTC)
	r.Client = perf.Side{Device: "mlx5_0", Driver: "mlx5", Address: "10.1.0.2:40000"}
	r.Server = perf.Side{Device: "rxe0", Driver: "rxe", Address: "[fd00::1]:18516"}
	r.Config.Events, r.Config.MTU, r.Config.TOS, r.Config.Duration = true, 4096, 106, 5*time.Second
	return r
}

// TestWrite: each kind of picture has its curves with all points, names, differences and marks, and a legend that is
// below all data.
func TestWrite(t *testing.T) {
	for name, c := range map[string]struct {
		options Options
		reports []Named
		curves  []int
		spans   int
		texts   []string
	}{
		"latency": {Options{}, []Named{{"", told(sweep(perf.Send, perf.Lat, 1))}}, []int{20, 20, 20}, 0, []string{
			"verbs perf, send-lat: latency", "10.1.0.2 mlx5_0 (mlx5) to fd00::1 rxe0 (rxe), 2026-11-30 16:05 UTC, rc, duration 5s, events true, mtu 4096, tos 106",
			"send-lat rc median", "send-lat rc 99 %", "send-lat rc 99.9 %", "1M", "2", "µs", "bytes in a message"}},
		"overlay": {Options{}, []Named{{"now", told(sweep(perf.Send, perf.Lat, 2))}, {"a<b&c", sweep(perf.Read, perf.Lat, 3)}},
			[]int{20, 20, 20, 20, 20, 20, 20, 20, 20}, 0, []string{"verbs perf, send-lat, read-lat: latency", "read-lat rc median (a<b&c)", "send-lat rc 99 % (now)", "% more than the first report", "50"}},
		"bandwidth": {Options{}, []Named{{"before", told(sweep(perf.Write, perf.BW, 2))}, {"after.json", told(sweep(perf.Write, perf.BW, 1))}, {"third", told(sweep(perf.Write, perf.BW, 3))}},
			[]int{20, 20, 20, 20, 20}, 0, []string{"verbs perf, write-bw: bandwidth", "MiB/s", "write-bw rc MiB/s (before)", "64K", "0", "400", "-50", "50"}},
		"distribution": {Options{}, []Named{{"", one(perf.Atomic, perf.Lat)}}, []int{52, 31}, 0, []string{
			"unknown host to unknown host, 16 bytes, rc", "90 %", "atomic-lat rc median 39.87 µs, 99 % 158.6 µs, 99.9 % 158.6 µs", "µs"}},
		"distributions": {Options{Kind: Latency}, []Named{{"before.json", told(jitter(1, 1))}, {"after.json", told(jitter(2, 8))}}, []int{0, 0, 0, 0}, 0, []string{
			"% of the messages, in bins of which each is 5 % wide", "messages with no more", "99.99 %"}},
		"one size of a sweep": {Options{Kind: Latency, Size: 4096}, []Named{{"", told(sweep(perf.Send, perf.Lat, 1))}}, []int{0, 0}, 0, []string{"messages with no more"}},
		"one size":            {Options{}, []Named{{"", one(perf.Read, perf.BW)}}, []int{1}, 0, []string{"read-bw rc MiB/s", "16"}},
		"time": {Options{}, []Named{{"", told(timed(1))}}, []int{50}, 2, []string{
			"seconds since the traffic began", "Gb/s", "port down 2 s", "no messages 0.5 s", "write-bw rc 9.269 Gb/s on average"}},
		"times": {Options{Kind: Time}, []Named{{"a", told(timed(1))}, {"b", told(timed(2))}}, []int{50, 50}, 4, []string{
			"write-bw rc 4.635 Gb/s (-50.0 %) on average (b)", "port down 2 s (a)"}},
	} {
		t.Run(name, func(t *testing.T) {
			var b bytes.Buffer
			if err := Write(&b, c.options, c.reports...); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(filepath.Join(t.ArtifactDir(), strings.ReplaceAll(name, " ", "-")+".svg"), b.Bytes(), 0o600); err != nil {
				t.Fatal(err)
			}
			d := read(t, b.Bytes())
			markers := 0
			if len(d.curves) != len(c.curves) || d.spans != c.spans {
				t.Fatalf("%d curves and %d spans, want %d and %d", len(d.curves), d.spans, len(c.curves), c.spans)
			}
			for i, n := range c.curves {
				if n != 0 && d.curves[i] != n || d.curves[i] == 0 {
					t.Errorf("curve %d has %d points, want %d", i, d.curves[i], n)
				}
				if n != 52 { // the outline of a histogram has no mark
					markers += n
				}
			}
			if !slices.Contains(c.curves, 0) && d.markers != markers {
				t.Errorf("%d markers, want %d", d.markers, markers)
			}
			if d.legend <= d.axes {
				t.Errorf("the legend begins at %.0f, above the last axes at %.0f", d.legend, d.axes)
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

// TestHostile: names and options that are long or no text stay within the picture and its XML.
func TestHostile(t *testing.T) {
	r := told(sweep(perf.Send, perf.Lat, 1))
	evil := "</text><script>\x1b\xff&" + strings.Repeat("ä", 300)
	r.Test, r.Client, r.Server, r.Config.Type, r.Config.AtomicType = evil, perf.Side{Device: evil, Address: evil}, perf.Side{Address: evil}, evil, evil
	var b bytes.Buffer
	if err := Write(&b, Options{}, Named{evil, r}); err != nil {
		t.Fatal(err)
	}
	read(t, b.Bytes())
	if bytes.Contains(b.Bytes(), []byte("<script")) {
		t.Error("a name breaks the picture")
	}
	r.Config.Type = strings.Repeat("a, ", 1e5)
	r.Results[0].Latency.Max = 1e15
	b.Reset()
	if err := Write(&b, Options{}, Named{evil, r}); err != nil {
		t.Fatal(err)
	}
	if d := read(t, b.Bytes()); len(d.texts) > 100 {
		t.Errorf("the picture has %d texts", len(d.texts))
	}
	fast := one(perf.Send, perf.BW) // whose axis has as few marks as that of a slow one
	fast.Results[0].Bandwidth.MiBPerSecond = 1e15
	b.Reset()
	if err := Write(&b, Options{Kind: Sizes}, Named{"", fast}); err != nil {
		t.Fatal(err)
	}
	read(t, b.Bytes())
	flap := timed(1) // that ends with an interruption
	flap.Results[0].Timeline = append(flap.Results[0].Timeline, perf.Sample{Seconds: 26})
	b.Reset()
	if err := Write(&b, Options{}, Named{strings.Repeat("long", 100), flap}); err != nil {
		t.Fatal(err)
	}
	read(t, b.Bytes())
}

// TestOptions: what cannot be drawn is refused with what can.
func TestOptions(t *testing.T) {
	lat, bw := Named{"lat.json", sweep(perf.Send, perf.Lat, 1)}, Named{"bw.json", one(perf.Send, perf.BW)}
	for want, c := range map[string]struct {
		options Options
		report  Named
	}{
		"lat.json has no result of size 3":          {Options{Size: 3}, lat},
		"and the reports have 20: choose one by":    {Options{Kind: Latency}, lat},
		"--kind is time, allowed: sizes, latency":   {Options{Kind: Time, Size: 4}, lat},
		"--kind is latency, allowed: sizes, time; ": {Options{Kind: Latency}, bw},
	} {
		if err := Write(io.Discard, c.options, c.report); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error is %v, want %q", err, want)
		}
	}
	if err := Check(slices.Repeat([]Named{bw}, MaxReports+1)...); err == nil || !strings.Contains(err.Error(), "number of reports is 13, allowed: 1 to 12") {
		t.Error(err)
	}
}

// TestFigures: a file with figures that no test has measured is refused, by the field that is wrong.
func TestFigures(t *testing.T) {
	for want, text := range map[string]string{
		`metric is "jitter", allowed: lat, bw`:                              `{"metric":"jitter"},"results":[{"size":2}]`,
		"histogram has count 1, allowed: 1 and more, 0":                     `{"metric":"lat"},"results":[{"size":2,"latency":{"samples":0,"histogram":[{"count":1}]}}]`,
		"histogram has count 5":                                             `{"metric":"lat"},"results":[{"size":2,"latency":{"samples":1,"histogram":[{"count":5}]}}]`,
		"histogram has count -5":                                            `{"metric":"lat"},"results":[{"size":2,"latency":{"samples":1,"histogram":[{"count":-5}]}}]`,
		"samples is 2, and the histogram has 1":                             `{"metric":"lat"},"results":[{"size":2,"latency":{"samples":2,"histogram":[{"count":1}]}}]`,
		"p99_us is 1e+300, allowed: 0 to 1e+15":                             `{"metric":"lat"},"results":[{"size":2,"latency":{"samples":1,"p99_us":1e300,"histogram":[{"count":1}]}}]`,
		"mib_per_s is -1, allowed: 0 to":                                    `{"metric":"bw"},"results":[{"size":2,"bandwidth":{"mib_per_s":-1}}]`,
		"a bin of the histogram is from 2 to 1 µs":                          `{"metric":"lat"},"results":[{"size":2,"latency":{"samples":1,"histogram":[{"count":1,"from_us":2,"to_us":1}]}}]`,
		"has seconds 0 and messages 1":                                      `{"metric":"bw"},"results":[{"size":2,"bandwidth":{"mib_per_s":1},"intervals":[{"seconds":0,"messages":1}]}]`,
		"has seconds 2 and messages -1":                                     `{"metric":"bw"},"results":[{"size":2,"bandwidth":{"mib_per_s":1},"intervals":[{"seconds":1},{"seconds":2,"messages":-1}]}]`,
		"and messages 9, allowed: more than the one bef":                    `{"metric":"bw"},"results":[{"size":2,"bandwidth":{"mib_per_s":1},"intervals":[{"seconds":5e-324,"messages":9}]}]`,
		"from 1 to 3 µs, allowed: from the end of the one before, 2, ":      `{"metric":"lat"},"results":[{"size":2,"latency":{"samples":2,"histogram":[{"count":1,"to_us":2},{"count":1,"from_us":1,"to_us":3}]}}]`,
		"the histogram has 5000 bins, allowed: up to 4096":                  `{"metric":"lat"},"results":[{"size":2,"latency":{"samples":5000,"histogram":[{"count":1}` + strings.Repeat(`,{"count":1}`, 4999) + `]}}]`,
		"the number of results is 65, allowed: 1 to 64":                     `{"metric":"bw"},"results":[{}` + strings.Repeat(",{}", 64) + `]`,
		"size of a result is 9223372036854775807, allowed: 1 to 2147483647": `{"metric":"bw"},"results":[{"size":9223372036854775807}]`,
		"mib_per_s is 1.79":                                                 `{"metric":"bw"},"results":[{"size":2,"bandwidth":{"mib_per_s":1.7976931348623157e308}}]`,
	} {
		r, err := perf.ReadReport([]byte(`{"schema":1,"config":` + text + "}"))
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
		"has no latency with": {{"", empty}},
		"old.json: the resul": {{"", one(perf.Send, perf.Lat)}, {"old.json", empty}},
	} {
		if err := Write(io.Discard, Options{}, reports...); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error is %v, want %q", err, want)
		}
	}
	for file, allowed := range map[string]bool{"a.svg": true, "/x/B.SVG": true, "a.png": false, "svg": false} {
		if err := CheckFile("plot", file); (err == nil) != allowed {
			t.Errorf("%s: %v", file, err)
		}
	}
}
