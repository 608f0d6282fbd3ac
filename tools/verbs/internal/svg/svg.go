// Package svg has what the pictures of verbs have in common.
package svg

import (
	"fmt"
	"html"
	"io"
	"strings"
	"unicode"
	"unicode/utf8"
)

// Sizes of text, in pixels. The width of a character is an average of most fonts.
const (
	TextSize   = 12
	LineHeight = 18
	CharWidth  = 0.6 * TextSize
)

// Shown makes a text fit for XML, and shortens it if it has more characters than that.
func Shown(text string, most int) string {
	return html.EscapeString(Short(strings.Map(func(r rune) rune {
		if !unicode.IsGraphic(r) {
			return '?'
		}
		return r
	}, strings.ToValidUTF8(text, "?")), most))
}

// Short shortens a text in the middle if it has more characters than that.
func Short(text string, most int) string {
	if runes := []rune(text); len(runes) > most {
		text = string(runes[:most/2]) + "…" + string(runes[len(runes)-(most-1)/2:])
	}
	return text
}

// Width returns the width of a text in pixels, if it has at most so many characters.
func Width(text string, most int) float64 {
	return float64(min(utf8.RuneCountInString(text), most)) * CharWidth
}

// Picture collects the elements of a picture.
type Picture struct{ strings.Builder }

// Add adds an element.
func (p *Picture) Add(format string, args ...any) { fmt.Fprintf(p, format+"\n", args...) }

// Text adds a text of so many characters at most, with more attributes.
func (p *Picture) Text(x, y float64, attrs, text string, most int) {
	p.Add(`<text x="%.1f" y="%.1f"%s>%s</text>`, x, y, attrs, Shown(text, most))
}

// Draw writes the picture.
func (p *Picture) Draw(w io.Writer, width, height float64) error {
	_, err := fmt.Fprintf(w, "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%.0f\" height=\"%.0f\" font-family=\"sans-serif\" font-size=\"%d\">\n"+
		"<rect width=\"100%%\" height=\"100%%\" fill=\"#fff\"/>\n%s</svg>\n", width, height, TextSize, p.String())
	return err
}
