package source

import (
	"go/ast"
	"go/token"
	"regexp"
	"strconv"
	"strings"
	"testing"
)

// phrases are turns of phrase that plain English has a shorter or clearer word for, each with the
// number of times that it may stand in comments and strings. Lower a limit when fewer are left.
var phrases = []struct {
	instead string // a better way to say it
	re      *regexp.Regexp
	most    int
}{
	{`name the thing: "is the MTU of", "belongs to"`, regexp.MustCompile(`\b(is that|are those) of\b`), 0},
	{`"does not have", or "without"`, regexp.MustCompile(`\b(has (none)|lack(s))\b`), 19},
	{`say who sends what: "a query of the kernel"`, regexp.MustCompile(`\b(is|was) (asked)\b`), 0},
	{`"does not know", "without support for"`, regexp.MustCompile(`\b(knows nothing) of\b`), 0},
	{`"must be", or the active verb`, regexp.MustCompile(`\b(is) to be\b`), 0},
	{`"reports", "describes"`, regexp.MustCompile(`\b(tells) of\b`), 0},
	{`begin with the thing: "A packet that ..."`, regexp.MustCompile(`(?:^|[.:;!] )What [^.?!:;]*\b(?:is|are|was|were|has|have|do|does|must|may|can)\b[^.?!]*(?:[.!]|$)`), 0},
}

// TestProse: comments and strings of all packages do not go back to phrases that were removed.
func TestProse(t *testing.T) {
	t.Parallel()
	places := make([][]string, len(phrases))
	for _, f := range files(t) {
		if f.generated() {
			continue
		}
		count := func(pos token.Pos, text string) {
			text = strings.Join(strings.Fields(text), " ")
			for i, p := range phrases {
				for range p.re.FindAllString(text, -1) {
					places[i] = append(places[i], f.set.Position(pos).String())
				}
			}
		}
		for _, c := range f.ast.Comments {
			count(c.Pos(), c.Text())
		}
		ast.Inspect(f.ast, func(n ast.Node) bool {
			if lit, ok := n.(*ast.BasicLit); ok && lit.Kind == token.STRING {
				text, _ := strconv.Unquote(lit.Value)
				count(lit.Pos(), text)
			}
			return true
		})
	}
	for i, p := range phrases {
		if len(places[i]) > p.most {
			t.Errorf("%d times %q, allowed: %d; write %s:\n\t%s", len(places[i]), p.re, p.most, p.instead, strings.Join(places[i], "\n\t"))
		}
	}
}
