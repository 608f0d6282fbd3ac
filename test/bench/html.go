package main

import (
	_ "embed"
	"fmt"
	"html/template"
	"io"
	"math"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

//go:embed page.html
var pageText string

// recordedHotPaths is the record of hot paths that the page shows, which needs neither a kernel nor a device.
//
//go:embed results/hotpaths-amd64.json
var recordedHotPaths []byte

var page = template.Must(template.New("page").Parse(pageText))

// Sizes of a plot over the size of messages, and of that of the ratios, in pixels.
const (
	plotWidth, plotHeight                         = 350, 250
	plotLeft, plotTop, plotRight, plotBottom      = 60, 22, 335, 220
	ratiosWidth, ratiosLeft, ratiosRight, rowStep = 900, 290, 880, 16
)

// pageData is what the page shows.
type pageData struct {
	Title  string
	Plots  []plot
	Ratios *ratios
	Rows   []pageRow

	HotTitle string
	HotPaths [][]string // with the heading

	Top, Bottom, Under, Beside, NameRight int
}

// pageRow is a row of the page's table.
type pageRow struct {
	Name, Ours, Theirs, Unit, Ratio, Quartiles, Range, Wanted, Error string
	Missed                                                           bool
}

// plot is one of figures over the size of messages.
type plot struct {
	Title                                                            string
	Width, Height, Left, Right, Top, Bottom, InnerWidth, InnerHeight int
	X, Y                                                             []tick
	Curves                                                           []curve
}

// tick is a mark of an axis.
type tick struct {
	At    int
	Label string
	Class string
}

// curve is a line.
type curve struct {
	Class  string
	Points []point
}

type point struct{ X, Y float64 }

// ratios is the plot of all ratios.
type ratios struct {
	Width, Height, Bottom int
	X                     []tick
	Rows                  []ratioRow
}

type ratioRow struct {
	Name                                      string
	Missed                                    bool
	Y, Box, BoxWidth, Least, Q1, Median, Most int
}

// sized is the name of a row that is about a size of messages.
var sized = regexp.MustCompile(`^([a-z]+-(?:lat|bw))/size=(\d+)/wait=([a-z]+)$`)

// writeHTML writes it as a page that needs no other file.
func (r *Report) writeHTML(w io.Writer) error {
	hot, err := parseCosts("results/hotpaths-amd64.json", recordedHotPaths)
	if err != nil {
		return err
	}
	plain := strings.NewReplacer("`", "")
	d := pageData{
		HotTitle: plain.Replace(hotTitle),
		Title:    r.title(), Plots: r.plots(), Ratios: r.ratios(),
		Top: plotTop, Bottom: plotBottom, Under: plotBottom + 16, Beside: plotLeft - 5, NameRight: ratiosLeft - 10,
	}
	for _, row := range hot.hotTable() {
		for i := range row {
			row[i] = plain.Replace(row[i])
		}
		d.HotPaths = append(d.HotPaths, row)
	}
	for i := range r.Rows {
		row := &r.Rows[i]
		p := pageRow{Name: row.Name, Unit: row.Unit, Error: row.Error, Missed: row.missed(),
			Ours: figure(row.OursMedian), Theirs: figure(row.RdmaCoreMedian), Ratio: fmt.Sprintf("%.2f", row.Ratio.Median),
			Quartiles: fmt.Sprintf("%.2f to %.2f", row.Ratio.Q1, row.Ratio.Q3), Range: fmt.Sprintf("%.2f to %.2f", row.Ratio.Least, row.Ratio.Most)}
		if row.Wanted != 0 {
			sign := "at most"
			if row.Better == more {
				sign = "at least"
			}
			p.Wanted = fmt.Sprintf("%s %.2f", sign, row.Wanted)
		}
		d.Rows = append(d.Rows, p)
	}
	return page.Execute(w, d)
}

// sample is a figure of both at a size.
type sample struct {
	size         int
	ours, theirs float64
}

// plots makes a plot of each test that has several sizes.
func (r *Report) plots() (all []plot) {
	var order []string
	tests := map[string][]sample{}
	for i := range r.Rows {
		row := &r.Rows[i]
		m := sized.FindStringSubmatch(row.Name)
		if m == nil || !row.measured() {
			continue
		}
		size, err := strconv.Atoi(m[2])
		if err != nil || size < 1 {
			continue
		}
		title, each := m[1]+", "+m[3], 1.0
		switch row.Unit {
		case microseconds:
			title += ": µs"
		case rate: // all on one axis
			title, each = title+": MiB/s", float64(size)/(1<<20)
		case bandwidth:
			title += ": MiB/s"
		}
		if tests[title] == nil {
			order = append(order, title)
		}
		tests[title] = append(tests[title], sample{size, row.OursMedian * each, row.RdmaCoreMedian * each})
	}
	for _, title := range order {
		if len(tests[title]) > 1 {
			all = append(all, newPlot(title, tests[title]))
		}
	}
	return all
}

// newPlot draws samples, both axes logarithmic.
func newPlot(title string, samples []sample) plot {
	slices.SortFunc(samples, func(a, b sample) int { return a.size - b.size })
	p := plot{Title: title, Width: plotWidth, Height: plotHeight, Left: plotLeft, Right: plotRight, Top: plotTop, Bottom: plotBottom,
		InnerWidth: plotRight - plotLeft, InnerHeight: plotBottom - plotTop}
	low, high := math.Inf(1), math.Inf(-1)
	for _, s := range samples {
		low, high = min(low, s.ours, s.theirs), max(high, s.ours, s.theirs)
	}
	bottom, top := math.Floor(math.Log10(low)), math.Ceil(math.Log10(high))
	if top == bottom {
		top++
	}
	left, right := math.Log2(float64(samples[0].size)), math.Log2(float64(samples[len(samples)-1].size))
	if right == left {
		right++
	}
	x := func(size int) float64 {
		return plotLeft + 12 + (math.Log2(float64(size))-left)/(right-left)*(plotRight-plotLeft-24)
	}
	y := func(v float64) float64 {
		return plotBottom - (math.Log10(v)-bottom)/(top-bottom)*(plotBottom-plotTop)
	}
	for decade := bottom; decade <= top; decade++ {
		v := math.Pow(10, decade)
		p.Y = append(p.Y, tick{At: int(y(v)), Label: strconv.FormatFloat(v, 'g', -1, 64)})
	}
	ours, theirs := curve{Class: "ours"}, curve{Class: "theirs"}
	for _, s := range samples {
		p.X = append(p.X, tick{At: int(x(s.size)), Label: sizeName(s.size)})
		ours.Points = append(ours.Points, point{x(s.size), y(s.ours)})
		theirs.Points = append(theirs.Points, point{x(s.size), y(s.theirs)})
	}
	p.Curves = []curve{theirs, ours}
	return p
}

// sizeName writes a size in short.
func sizeName(n int) string {
	switch {
	case n >= 1<<20 && n%(1<<20) == 0:
		return fmt.Sprintf("%d MiB", n>>20)
	case n >= 1<<10 && n%(1<<10) == 0:
		return fmt.Sprintf("%d KiB", n>>10)
	}
	return fmt.Sprintf("%d B", n)
}

// ratios draws all ratios, on a logarithmic axis.
func (r *Report) ratios() *ratios {
	high := 2.0 // the axis goes from 1/high to high, as 0.5 is as far from 1 as 2
	p := &ratios{Width: ratiosWidth}
	for i := range r.Rows {
		if q := r.Rows[i].Ratio; r.Rows[i].measured() {
			high = max(high, q.Most, 1/q.Least)
		}
	}
	x := func(v float64) int {
		return int(ratiosLeft + (math.Log(v)/math.Log(high)+1)/2*(ratiosRight-ratiosLeft))
	}
	for i := range r.Rows {
		row := &r.Rows[i]
		if !row.measured() {
			continue
		}
		q, y := row.Ratio, 32+rowStep*len(p.Rows)
		p.Rows = append(p.Rows, ratioRow{Name: row.Name, Missed: row.missed(), Y: y, Box: y - 4, BoxWidth: max(1, x(q.Q3)-x(q.Q1)),
			Least: x(q.Least), Q1: x(q.Q1), Median: x(q.Median), Most: x(q.Most)})
	}
	if len(p.Rows) == 0 {
		return nil
	}
	p.Bottom = 32 + rowStep*len(p.Rows)
	p.Height = p.Bottom + 8
	for _, v := range []float64{0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50, 100} {
		if v < 1/high || v > high {
			continue
		}
		class := "grid"
		if v == 1 {
			class = "one"
		}
		p.X = append(p.X, tick{At: x(v), Label: strconv.FormatFloat(v, 'g', -1, 64), Class: class})
	}
	return p
}
