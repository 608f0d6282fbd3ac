package main

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// man writes a man page for every command of a verbs program, as its help describes it, and the scripts with
// which shells complete.
func man(verbs, dir string) error {
	for _, shell := range []string{"bash", "zsh", "fish"} {
		script, err := exec.Command(verbs, "completion", shell).Output()
		if err != nil {
			return fmt.Errorf("%s completion %s: %w", verbs, shell, err)
		}
		if err := write(filepath.Join(dir, "completions", "verbs."+shell), script); err != nil {
			return err
		}
	}
	return manPages(verbs, filepath.Join(dir, "man1"), nil)
}

// manPages writes the page of a command and those of the commands below it.
func manPages(verbs, dir string, words []string) error {
	help, err := exec.Command(verbs, append([]string{"help"}, words...)...).Output()
	if err != nil {
		return fmt.Errorf("%s help %s: %w", verbs, strings.Join(words, " "), err)
	}
	page, commands := manPage(strings.Join(append([]string{"verbs"}, words...), "-"), string(help))
	errs := []error{write(filepath.Join(dir, strings.Join(append([]string{"verbs"}, words...), "-")+".1"), []byte(page))}
	for _, c := range commands {
		errs = append(errs, manPages(verbs, dir, append(words[:len(words):len(words)], c)))
	}
	return errors.Join(errs...)
}

// manPage makes a man page of a help text, and lists the commands in it. A help text begins with a line that says
// what the command does. One or two words and a colon at the margin,
// behind an empty line, begin a part.
func manPage(name, help string) (page string, commands []string) {
	escape := func(s string) string {
		s = strings.NewReplacer(`\`, `\e`, "-", `\-`).Replace(s)
		if strings.HasPrefix(s, ".") || strings.HasPrefix(s, "'") {
			s = `\&` + s
		}
		return s
	}
	lines := strings.Split(strings.TrimRight(help, "\n"), "\n")
	var b strings.Builder
	fmt.Fprintf(&b, ".TH %s 1\n.SH NAME\n%s \\- %s\n", strings.ToUpper(escape(name)), escape(name), escape(strings.TrimSuffix(lines[0], ".")))
	part := ""
	begin := func(title string) {
		if part != "" {
			b.WriteString(".fi\n")
		}
		part = title
		fmt.Fprintf(&b, ".SH %s\n.nf\n", escape(strings.ToUpper(title)))
	}
	for i, l := range lines[1:] {
		switch title, ok := strings.CutSuffix(l, ":"); {
		case l == "":
			if part != "" && i+2 < len(lines) {
				b.WriteString("\n")
			}
		case ok && lines[i] == "" && title[0] >= 'A' && title[0] <= 'Z' && strings.Count(title, " ") <= 1:
			begin(title)
		default:
			if (part == "Usage" || part == "") && !strings.HasPrefix(l, " ") {
				begin("Description")
			}
			b.WriteString(escape(l) + "\n")
			if words := strings.Fields(l); part == "Commands" && strings.HasPrefix(l, "  ") && l[2] != ' ' {
				commands = append(commands, words[0])
			}
		}
	}
	b.WriteString(".fi\n")
	return b.String(), commands
}

// write writes a file, and makes its folder.
func write(path string, b []byte) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o777); err != nil {
		return err
	}
	return os.WriteFile(path, b, 0o666)
}
