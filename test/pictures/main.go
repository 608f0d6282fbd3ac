// Pictures draws the diagrams of the documentation from the text beside it, and records the terminal session of
// the README.
//
//	go run ./test/pictures             every *.txt, as an SVG of the same name
//	go run ./test/pictures record      session.sh, as session.svg
//
// diagram.go describes the text.
package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// dir has the texts and the pictures.
const dir = "test/pictures"

func main() {
	var err error
	switch args := strings.Join(os.Args[1:], " "); args {
	case "":
		err = drawAll(dir)
	case "record":
		err = recordFile(filepath.Join(dir, "session.sh"))
	default:
		err = fmt.Errorf("argument %q, must be record, or none to draw the diagrams", args)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "pictures:", err)
		os.Exit(1)
	}
}

// drawAll writes the diagrams of a folder.
func drawAll(dir string) error {
	texts, err := filepath.Glob(filepath.Join(dir, "*.txt"))
	if err == nil && len(texts) == 0 {
		err = errors.New("no *.txt in " + dir + ": run it in the root of the repository")
	}
	if err != nil {
		return err
	}
	for _, path := range texts {
		text, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		svg, err := draw(string(text))
		if err != nil {
			return fmt.Errorf("%s:%w", path, err)
		}
		if err := os.WriteFile(strings.TrimSuffix(path, ".txt")+".svg", []byte(svg), 0o644); err != nil {
			return err
		}
	}
	return nil
}
