package source

import (
	"go/ast"
	"path"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// driverNames are the drivers of package uverbs, as identifiers and import paths have them.
var driverNames = regexp.MustCompile(`(?i)rxe|mlx5|siw`)

// kindOf matches the identifiers that stand for one driver on the data path.
var kindOf = regexp.MustCompile(`^kind[A-Z]`)

// mlx5Only are the files of uverbs with objects and verbs that only mlx5 has.
var mlx5Only = []string{
	"clock.go", "dc.go", "dm.go", "ece.go", "mlx5_hook.go", "mr_mlx5.go", "thread_domain.go", "wq.go",
}

// ofDriver are the files of uverbs that may know a driver by its name: those of one driver, the one
// that chooses among them, and those about what only mlx5 has.
func ofDriver(f *file) bool {
	return strings.HasPrefix(f.base(), "driver_") || f.base() == "dispatch.go" || slices.Contains(mlx5Only, f.base())
}

// driverUses returns the places where a file of uverbs depends on which driver a device has.
func driverUses(f *file) (uses []string) {
	at := func(n ast.Node, what string) { uses = append(uses, f.set.Position(n.Pos()).String()+": "+what) }
	for _, i := range f.ast.Imports {
		if name := strings.Trim(i.Path.Value, `"`); driverNames.MatchString(path.Base(name)) {
			at(i, name)
		}
	}
	ast.Inspect(f.ast, func(n ast.Node) bool {
		if id, ok := n.(*ast.Ident); ok && (kindOf.MatchString(id.Name) || driverNames.MatchString(id.Name)) {
			at(id, id.Name)
		}
		return true
	})
	return uses
}

// TestGenericFiles: outside of dispatch.go, driver_*.go and the files about what only mlx5 has, no code of
// uverbs names a driver. Comments may, as users have to know how their device behaves.
func TestGenericFiles(t *testing.T) {
	t.Parallel()
	dispatched := false
	for _, f := range files(t) {
		if f.pkg() != "uverbs" || f.test() {
			continue
		}
		uses := driverUses(f)
		if ofDriver(f) {
			dispatched = dispatched || f.base() == "dispatch.go" && len(uses) > 0
			continue
		}
		for _, use := range uses {
			t.Errorf("%s in a generic file; see dispatch.go", use)
		}
	}
	if !dispatched {
		t.Error("dispatch.go names no driver: the test does not see the source")
	}
}
