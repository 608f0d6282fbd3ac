package pairs

import "testing"

// TestPermits: methods run at the same time as their uses permit.
func TestPermits(t *testing.T) {
	const builds Use = "builds"
	posts := Beside(builds)
	for _, c := range []struct {
		a, b Use
		want bool
	}{
		{Freely, Freely, true}, {Freely, builds, true}, {Freely, posts, true},
		{builds, builds, false}, {builds, "polls", true}, {posts, posts, true}, {posts, builds, false}, {posts, "polls", true},
		{Alone, Freely, false}, {Alone, Alone, false}, {posts, Alone, false},
	} {
		if c.a.permits(c.b) != c.want || c.b.permits(c.a) != c.want {
			t.Errorf("%q beside %q is permitted: %v, want %v", c.a, c.b, !c.want, c.want)
		}
	}
}
