package fault

import "testing"

func TestChanceText(t *testing.T) {
	for text, want := range map[string]Chance{
		"0%": 0, "1%": Percent, "100%": Always, "0.5%": Percent / 2, "0.0001%": 1, "12.34%": 123_400,
		"99.9999%": Always - 1, "7.007%": 70_070,
	} {
		if got, ok := parseChance(text); !ok || got != want {
			t.Errorf("parseChance(%q) = %d, %v; want %d", text, got, ok, want)
		}
		if got := want.String(); got != text {
			t.Errorf("Chance(%d).String() = %q, want %q", want, got, text)
		}
	}
	if got, ok := parseChance("01.50%"); !ok || got != 15_000 {
		t.Errorf(`parseChance("01.50%%") = %d, %v; want 15000`, got, ok)
	}
	for _, text := range []string{"", "%", "1", "-1%", "+1%", "1.%", ".5%", "1.00001%", "100.0001%", "1e1%", "1 %", "1,5%", "99999999999999999999%", "1%%"} {
		if got, ok := parseChance(text); ok {
			t.Errorf("parseChance(%q) = %d, want none", text, got)
		}
	}
}

func TestChanceHits(t *testing.T) {
	for _, c := range []struct {
		chance Chance
		draw   uint64
		want   bool
	}{
		{0, 0, false}, {Always, 1<<64 - 1, true}, {Always / 2, 1<<63 - 1, true}, {Always / 2, 1 << 63, false},
		{1, 0, true}, {Always - 1, 1<<64 - 1, false},
	} {
		if got := c.chance.hits(c.draw); got != c.want {
			t.Errorf("Chance %v hits(%#x) = %v, want %v", c.chance, c.draw, got, c.want)
		}
	}
}
