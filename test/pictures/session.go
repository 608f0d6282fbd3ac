package main

import (
	"fmt"
	"html"
	"os"
	"os/exec"
	"strings"
)

const (
	columns   = 100 // of the terminal
	cellWidth = 8.4 // of a character
	promptTag = "\x01"
	terminal  = "ui-monospace, 'SF Mono', Menlo, Consolas, 'DejaVu Sans Mono', monospace"
)

// recordFile runs the commands in a file and writes what a terminal shows beside it.
func recordFile(path string) error {
	script, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	shown, err := record(string(script))
	if err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	return os.WriteFile(strings.TrimSuffix(path, ".sh")+".svg", []byte(screen(shown)), 0o644)
}

// record runs commands, one in each line, and returns what they print, each behind the command itself, which has
// promptTag before it. A command with & at its end gets a second to start, and ends before the next command but one.
// record stops at the first command that fails.
func record(script string) (string, error) {
	var sh strings.Builder
	for line := range strings.Lines(script) {
		line = strings.TrimSpace(line)
		if line == "" || line[0] == '#' {
			continue
		}
		end := "wait"
		if strings.HasSuffix(line, "&") {
			end = "sleep 1"
		}
		fmt.Fprintf(&sh, "printf '%s$ %%s\\n' '%s'\n%s\n%s\n", promptTag, strings.ReplaceAll(line, "'", `'\''`), line, end)
	}
	out, err := exec.Command("sh", "-e", "-c", sh.String()).CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("%w:\n%s", err, out)
	}
	return string(out), nil
}

// screen returns the picture of a terminal.
func screen(shown string) string {
	var b strings.Builder
	y := margin
	for line := range strings.Lines(shown) {
		line, command := strings.CutPrefix(strings.TrimSuffix(line, "\n"), promptTag)
		colour := "#e2e8f0"
		if command {
			colour = "#7dd3fc"
			y += lineHeight / 3
		}
		for {
			row := []rune(line)
			row = row[:min(len(row), columns)]
			y += lineHeight
			if n := len(row); n > 0 {
				fmt.Fprintf(&b, `<text x="%d" y="%d" textLength="%.1f" fill="%s" xml:space="preserve">%s</text>`+"\n",
					margin, y, float64(n)*cellWidth, colour, html.EscapeString(string(row)))
			}
			if line = line[len(string(row)):]; line == "" {
				break
			}
		}
	}
	return svg(2*margin+int(columns*cellWidth), y+margin, terminal, "#0f172a", b.String())
}
