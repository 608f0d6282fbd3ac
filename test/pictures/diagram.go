package main

import (
	"fmt"
	"html"
	"slices"
	"strconv"
	"strings"
)

// A diagram is a line of text for each element. Numbers are pixels from the top left corner, colours are
// program, kernel, device, memory and plain, words follow a colon and a blank, and | begins another line of them.
// Empty lines and lines with # do not count.
//
//	width W                             of the picture, first; its height follows
//	frame X Y W H: words                around other elements
//	box COLOUR NAME X Y W H: words
//	arrow FROM TO [AT]: words           straight, between boxes above or beside each other; AT is its place across
//	option FROM TO [AT]: words          the same, dashed
//	both FROM TO [AT]: words            with two heads
//	text X Y: words                     begins at X
//	lane COLOUR NAME X: words           a box at the top and a line down from it; what follows needs lanes
//	send FROM TO: words                 an arrow between lanes, below everything before it
//	reply FROM TO: words                the same, dashed
//	note LANE: words                    a box on a lane
//	part: words                         a line across, for what follows
//
// Words that do not fit are an error.

const (
	fontSize   = 14
	lineHeight = 18
	charWidth  = 7.4 // of the widest usual fonts without serifs, on average
	margin     = 16
	laneTop    = margin + 46 // where lines of lanes begin
	fonts      = "system-ui, -apple-system, 'Segoe UI', Helvetica, Arial, sans-serif"
)

// colours are those to fill with and of lines.
var colours = map[string][2]string{
	"program": {"#dbeafe", "#1d4ed8"},
	"kernel":  {"#fef3c7", "#b45309"},
	"device":  {"#dcfce7", "#15803d"},
	"memory":  {"#ede9fe", "#6d28d9"},
	"plain":   {"#f8fafc", "#94a3b8"},
}

// rect is a box, or a lane, whose height is 0.
type rect struct{ x, y, w, h int }

// diagram is a picture that is being drawn.
type diagram struct {
	below, above strings.Builder // SVG elements
	loose        strings.Builder // words that stand in no box
	width        int
	height       int             // of what was drawn
	boxes        map[string]rect // by name
	lanes        []rect          // from left to right
}

// draw returns the SVG of a text.
func draw(text string) (string, error) {
	d := &diagram{boxes: map[string]rect{}}
	number := 0
	for line := range strings.Lines(text) {
		number++
		line = strings.TrimSpace(line)
		if line == "" || line[0] == '#' {
			continue
		}
		head, words, _ := strings.Cut(line, ": ")
		if err := d.element(strings.Fields(head), strings.Split(words, "|")); err != nil {
			return "", fmt.Errorf("%d: %q: %w", number, line, err)
		}
	}
	for _, l := range d.lanes {
		fmt.Fprintf(&d.below, `<path d="M%d %dV%d" stroke="#94a3b8" stroke-dasharray="4 4"/>`+"\n", l.x, laneTop, d.height)
	}
	return svg(d.width, d.height+margin, fonts, "#ffffff",
		`<defs><marker id="head" viewBox="0 0 8 8" refX="8" refY="4" markerWidth="8" markerHeight="8" orient="auto-start-reverse">`+
			`<path d="M0 0L8 4L0 8z" fill="#334155"/></marker></defs>`+"\n"+d.below.String()+
			`<g stroke="#ffffff" stroke-width="4" paint-order="stroke">`+"\n"+d.loose.String()+"</g>\n"+d.above.String()), nil
}

// svg returns a picture with a background.
func svg(width, height int, fonts, background, elements string) string {
	return fmt.Sprintf(`<svg xmlns="http://www.w3.org/2000/svg" width="%d" height="%d" viewBox="0 0 %[1]d %[2]d" font-family="%s" font-size="%d" fill="none">
<rect width="%[1]d" height="%[2]d" rx="8" fill="%[5]s"/>
%[6]s</svg>
`, width, height, fonts, fontSize, background, elements)
}

// forms are what follows the keyword of an element: c a colour, n the name of a new element, b a box, l a lane,
// i a number, and ? a number that may be missing.
var forms = map[string]string{
	"width": "i", "frame": "iiii", "box": "cniiii", "arrow": "bb?", "option": "bb?", "both": "bb?", "text": "ii",
	"lane": "cni", "send": "ll", "reply": "ll", "note": "l", "part": "",
}

// element draws an element.
func (d *diagram) element(f []string, words []string) error {
	keyword := strings.TrimSuffix(f[0], ":")
	form, ok := forms[keyword]
	f = f[1:]
	if len(f) < len(form) && strings.HasSuffix(form, "?") {
		form = strings.TrimSuffix(form, "?")
	}
	switch {
	case !ok:
		return fmt.Errorf("keyword %q, must be one of those in diagram.go", keyword)
	case keyword != "width" && d.width == 0:
		return fmt.Errorf("the width must come first")
	case len(f) != len(form):
		return fmt.Errorf("%d fields after %s, must be %d", len(f), keyword, len(form))
	}
	var n []int
	var r []rect
	for i, c := range form {
		known, exists := d.boxes[f[i]]
		switch c {
		case 'c':
			if _, ok := colours[f[i]]; !ok {
				return fmt.Errorf("colour %q is not known", f[i])
			}
		case 'n':
			if exists {
				return fmt.Errorf("name %q is taken", f[i])
			}
		case 'b', 'l':
			if !exists || (c == 'l') != (known.h == 0) {
				return fmt.Errorf("%q is no %s", f[i], map[rune]string{'b': "box", 'l': "lane"}[c])
			}
			r = append(r, known)
		default:
			v, err := strconv.Atoi(f[i])
			if err != nil || v < 0 || v > 2000 {
				return fmt.Errorf("number %q, must be 0 to 2000", f[i])
			}
			n = append(n, v)
		}
	}
	switch keyword {
	case "width":
		d.width = n[0]
	case "frame":
		d.rect(&d.below, rect{n[0], n[1], n[2], n[3]}, "plain")
		return d.words(&d.loose, n[0]+12, n[1]+lineHeight, n[2]-24, "start", words)
	case "box":
		d.boxes[f[1]] = rect{n[0], n[1], n[2], n[3]}
		return d.box(d.boxes[f[1]], f[0], words)
	case "text":
		return d.words(&d.loose, n[0], n[1], d.width-margin-n[0], "start", words)
	case "lane":
		l := rect{x: n[0], w: 24 + int(charWidth*float64(longest(words)))}
		d.boxes[f[1]], d.lanes = l, append(d.lanes, l)
		return d.box(rect{l.x - l.w/2, margin, l.w, laneTop - margin}, f[0], words)
	case "note":
		h, w := 12+lineHeight*len(words), 20+int(charWidth*float64(longest(words)))
		x := min(max(r[0].x-w/2, margin), d.width-margin-w)
		return d.box(rect{x, d.height + 12, w, h}, "plain", words)
	case "part":
		fmt.Fprintf(&d.below, `<path d="M%d %dH%d" stroke="#cbd5e1"/>`+"\n", margin, d.height+20, d.width-margin)
		return d.words(&d.loose, margin, d.height+20+lineHeight, d.width-2*margin, "start", words)
	case "send", "reply":
		from, to := r[0].x, r[1].x
		y := d.height + 8 + lineHeight*len(words)
		if err := d.words(&d.loose, (from+to)/2, y-lineHeight*(len(words)-1), max(from-to, to-from)-8, "middle", words); err != nil {
			return err
		}
		d.line(from, y+7, to, y+7, keyword)
	default:
		return d.arrow(keyword, r[0], r[1], n, words)
	}
	return nil
}

// arrow draws a straight arrow between two boxes that are above or beside each other.
func (d *diagram) arrow(keyword string, from, to rect, at []int, words []string) error {
	left, right := max(from.x, to.x), min(from.x+from.w, to.x+to.w)
	top, bottom := max(from.y, to.y), min(from.y+from.h, to.y+to.h)
	low, high := left, right // of the place across
	if left >= right {
		low, high = top, bottom
	}
	if low >= high {
		return fmt.Errorf("one box must be above or beside the other")
	}
	place := (low + high) / 2
	if len(at) > 0 {
		place = at[0]
	}
	if place < low || place > high {
		return fmt.Errorf("place %d, must be %d to %d", place, low, high)
	}
	x1, y1, x2, y2 := place, from.y+from.h, place, to.y
	switch {
	case left < right && to.y < from.y:
		y1, y2 = from.y, to.y+to.h
	case left >= right && from.x < to.x:
		x1, y1, x2, y2 = from.x+from.w, place, to.x, place
	case left >= right:
		x1, y1, x2, y2 = from.x, place, to.x+to.w, place
	}
	d.line(x1, y1, x2, y2, keyword)
	if words[0] == "" {
		return nil
	}
	if left < right {
		return d.words(&d.loose, place+8, (y1+y2)/2+5-lineHeight*(len(words)-1)/2, d.width-margin-place, "start", words)
	}
	return d.words(&d.loose, (x1+x2)/2, place-8-lineHeight*(len(words)-1), max(x1-x2, x2-x1), "middle", words)
}

// line draws an arrow.
func (d *diagram) line(x1, y1, x2, y2 int, keyword string) {
	more := ""
	switch keyword {
	case "option", "reply":
		more = ` stroke-dasharray="6 4"`
	case "both":
		more = ` marker-start="url(#head)"`
	}
	fmt.Fprintf(&d.below, `<path d="M%d %dL%d %d" stroke="#334155" stroke-width="1.5" marker-end="url(#head)"%s/>`+"\n", x1, y1, x2, y2, more)
	d.height = max(d.height, y1, y2)
}

// box draws words in a box.
func (d *diagram) box(r rect, colour string, words []string) error {
	d.rect(&d.above, r, colour)
	if lineHeight*len(words) > r.h {
		return fmt.Errorf("%d lines do not fit in a height of %d", len(words), r.h)
	}
	y := r.y + r.h/2 - lineHeight*(len(words)-1)/2 + 5
	return d.words(&d.above, r.x+r.w/2, y, r.w-8, "middle", words)
}

// rect draws the outline of a box.
func (d *diagram) rect(to *strings.Builder, r rect, colour string) {
	fmt.Fprintf(to, `<rect x="%d" y="%d" width="%d" height="%d" rx="6" fill="%s" stroke="%s"/>`+"\n", r.x, r.y, r.w, r.h, colours[colour][0], colours[colour][1])
	d.height = max(d.height, r.y+r.h)
}

// words writes lines of text, the first one with its base line at y.
func (d *diagram) words(to *strings.Builder, x, y, room int, anchor string, words []string) error {
	if need := int(charWidth * float64(longest(words))); need > room {
		return fmt.Errorf("the words need a width of %d, there is room for %d", need, room)
	}
	for i, line := range words {
		fmt.Fprintf(to, `<text x="%d" y="%d" text-anchor="%s" fill="#0f172a">%s</text>`+"\n", x, y+i*lineHeight, anchor, html.EscapeString(line))
	}
	d.height = max(d.height, y+(len(words)-1)*lineHeight+5)
	return nil
}

// longest returns the length of the longest line, in characters.
func longest(words []string) int {
	return len([]rune(slices.MaxFunc(words, func(a, b string) int { return len([]rune(a)) - len([]rune(b)) })))
}
