package matrix

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// TestCard: a block that is read again is the same, and one that is damaged is an error that names the line.
func TestCard(t *testing.T) {
	m := merge(someTests, someRuns())
	card := m.Card(0, "ConnectX-6  Dx", "22.1|2")
	text := card.String()
	got, err := ParseCard("\n  " + strings.ReplaceAll(text, "\n", "\r\n"))
	must(t, err)
	card.Device = "ConnectX-6 Dx"
	if diff := cmp.Diff(card, got); diff != "" || len(got.Groups) == 0 {
		t.Errorf("%s\n%s", text, diff)
	}
	lines := strings.SplitAfter(strings.TrimSuffix(text, "\n"), "\n")
	for i, l := range lines {
		for what, damaged := range map[string]string{
			"changed": strings.Join(lines[:i], "") + "x" + l + strings.Join(lines[i+1:], ""),
			"missing": strings.Join(lines[:i], "") + strings.Join(lines[i+1:], ""),
			"cut":     strings.Join(lines[:i], "") + l[:len(l)/2],
		} {
			want := "line " + string(rune('0'+(i+1)/10)) + string(rune('0'+(i+1)%10))
			want = strings.Replace(want, " 0", " ", 1)
			if _, err := ParseCard(damaged); err == nil || !strings.HasPrefix(err.Error(), want) {
				t.Errorf("line %d %s: error %v, want %s", i+1, what, err, want)
			}
		}
	}
	forged := strings.Replace((&Card{Device: "x"}).String(), "x #", "x\ry #", 1)
	if _, err := ParseCard(forged); err == nil || !strings.Contains(err.Error(), "control character") {
		t.Errorf("a carriage return: error %v", err)
	}
	if _, err := ParseCard(text + "more"); err == nil || !strings.Contains(err.Error(), "after the end") {
		t.Errorf("text after the block: error %v", err)
	}
}

// TestCardTable: the reports that are checked in become rows, and what strangers wrote stays text.
func TestCardTable(t *testing.T) {
	dir := t.TempDir()
	must(t, os.MkdirAll(filepath.Join(dir, cardFolder), 0o777))
	card := &Card{Device: "a <b> [c](d) \\[e](f)", Firmware: "1|2", Driver: "mlx5-roce", Kernel: "6.1.0", Arch: "amd64", Version: "v0.1.0", Date: "2026-11-30",
		Groups: []CardGroup{{"GID", 8, 0, 1}, {"limits", 20, 2, 0}}}
	must(t, os.WriteFile(filepath.Join(dir, cardFolder, "a.txt"), []byte(card.String()), 0o666))
	all, err := readCards(dir)
	must(t, err)
	const want = "| a &lt;b> \\[c](d) \\\\\\[e](f) | 1\\|2 | mlx5-roce | 6.1.0 amd64 | v0.1.0 | 2026-11-30 | ✓ 28 – 1 ✗ 2 | limits: 2 |\n"
	if got := cardTable(all); !strings.HasSuffix(got, want) {
		t.Errorf("table is\n%s\nwant at its end\n%s", got, want)
	}
	must(t, os.WriteFile(filepath.Join(dir, cardFolder, "b.txt"), []byte("hello\n"), 0o666))
	if _, err := readCards(dir); err == nil || !strings.Contains(err.Error(), "cards/b.txt: line 1") {
		t.Errorf("error %v, want one that names the file and the line", err)
	}
}
