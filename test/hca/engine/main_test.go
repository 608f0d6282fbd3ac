package engine

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// provoked are the rules that a test has broken on purpose.
var provoked = map[string]bool{}

// TestMain makes sure, after all tests, that each rule of the checker was broken by one.
func TestMain(m *testing.M) {
	flag.Parse()
	code := m.Run()
	whole := flag.Lookup("test.run").Value.String() == "" && flag.Lookup("test.skip").Value.String() == "" && flag.Lookup("test.fuzz").Value.String() == "" && flag.Lookup("test.list").Value.String() == ""
	if code == 0 && whole {
		for _, rule := range rules() {
			if !provoked[rule] {
				fmt.Printf("no test breaks the rule %s\n", rule)
				code = 1
			}
		}
	}
	os.Exit(code)
}

// rules finds the rules in the source.
func rules() []string {
	files, _ := filepath.Glob("*.go")
	re := regexp.MustCompile(`(?:violate|malformed)\("([a-z0-9-]+)"`)
	seen := map[string]bool{}
	var out []string
	for _, f := range files {
		if strings.HasSuffix(f, "_test.go") {
			continue
		}
		src, err := os.ReadFile(f)
		if err != nil {
			panic(err)
		}
		for _, m := range re.FindAllSubmatch(src, -1) {
			if r := string(m[1]); !seen[r] {
				seen[r] = true
				out = append(out, r)
			}
		}
	}
	if len(out) < 40 {
		panic("the rules are not found in the source")
	}
	return out
}
