package source

import (
	"go/ast"
	"go/parser"
	"go/token"
	"slices"
	"strings"
	"testing"
)

// environment are names whose value depends on where a test runs: the architecture, variables of
// the environment, the kernel and its devices.
var environment = []string{
	"GOARCH", "GOOS", "Getenv", "LookupEnv", "Uname", "Getuid", "Geteuid",
	"TheRig", "Kernel", "Modelled", "Slow", "Brief", "Ways", "onMLX5", "rig", "kernelVersion", "runningKernel",
}

// kernels are the functions among them that return the kernel's version.
var kernels = []string{"Uname", "Kernel", "kernelVersion", "runningKernel", "kernelBefore", "rxeBefore", "since"}

// skipping are the functions of testenv that record why a test ends.
var skipping = []string{"Skip", "Lacks", "Guest", "Hosts", "Mixed", "Needs", "NeedsIB", "NeedsLinks", "NeedsRoCE", "NeedsModel", "NeedsInfiniBand", "NeedsArch", "NeedsKernel", "NotSupported", "Boot"}

// places knows the names of a package whose value depends on where a test runs.
type places map[string]bool

// placesOf finds the variables and the functions with a bool for a result that depend on names.
func placesOf(pkg []*file, names []string) places {
	p := places{}
	for _, name := range names {
		p[name] = true
	}
	for n := -1; n != len(p); { // until no more are found
		n = len(p)
		for _, f := range pkg {
			for _, d := range f.ast.Decls {
				switch d := d.(type) {
				case *ast.FuncDecl:
					if d.Recv == nil && d.Body != nil && returnsBool(d.Type) && p.in(d.Body) {
						p[d.Name.Name] = true
					}
				case *ast.GenDecl:
					if d.Tok == token.VAR {
						p.specs(d)
					}
				}
			}
		}
	}
	return p
}

// returnsBool reports whether a function has one result, a bool.
func returnsBool(f *ast.FuncType) bool {
	if f.Results == nil || len(f.Results.List) != 1 {
		return false
	}
	id, ok := f.Results.List[0].Type.(*ast.Ident)
	return ok && id.Name == "bool"
}

// specs adds the variables of a declaration that depend on the place.
func (p places) specs(d *ast.GenDecl) {
	for _, s := range d.Specs {
		v := s.(*ast.ValueSpec)
		for i, name := range v.Names {
			if i < len(v.Values) && p.in(v.Values[i]) {
				p[name.Name] = true
			}
		}
	}
}

// in reports whether a tree names something that depends on the place.
func (p places) in(tree ast.Node) bool {
	return contains(tree, func(n ast.Node) bool {
		id, ok := n.(*ast.Ident)
		return ok && p[id.Name]
	})
}

// local is p with the variables of a function that depend on the place.
func (p places) local(body *ast.BlockStmt) places {
	all := places{}
	for name := range p {
		all[name] = true
	}
	ast.Inspect(body, func(n ast.Node) bool {
		a, ok := n.(*ast.AssignStmt)
		if !ok {
			return true
		}
		for i, lhs := range a.Lhs {
			id, ok := lhs.(*ast.Ident)
			switch {
			case !ok || id.Name == "_" || id.Name == "err":
			case len(a.Rhs) == len(a.Lhs) && isPlace(a.Rhs[i]) && all.in(a.Rhs[i]), len(a.Rhs) == 1 && len(a.Lhs) > 1 && isPlace(a.Rhs[0]) && all.in(a.Rhs[0]):
				all[id.Name] = true
			}
		}
		return true
	})
	return all
}

// isPlace reports whether an expression can be what a place says, rather than an object that was
// made with its help: a comparison, a call of testenv or os, a name, or a function of these.
func isPlace(e ast.Expr) bool {
	switch e := e.(type) {
	case *ast.CallExpr:
		switch fun := e.Fun.(type) {
		case *ast.Ident:
			return slices.Contains(environment, fun.Name) || strings.HasSuffix(fun.Name, "Before")
		case *ast.SelectorExpr:
			return slices.Contains(environment, fun.Sel.Name) || fun.Sel.Name == "Compare" || fun.Sel.Name == "Contains"
		}
		return false
	case *ast.BinaryExpr, *ast.UnaryExpr, *ast.Ident, *ast.SelectorExpr, *ast.IndexExpr, *ast.ParenExpr, *ast.FuncLit:
		return true
	}
	return false
}

// rules are what TestSilentReturns knows of a function.
type rules struct {
	place, kernel places          // names that depend on where it runs, and on the kernel's version
	lackers       map[string]bool // functions of the package that call testenv.Lacks
}

// lackersOf finds the functions of a package that record that something is lacking.
func lackersOf(pkg []*file) map[string]bool {
	all := map[string]bool{}
	for _, f := range pkg {
		for _, d := range f.ast.Decls {
			if fn, ok := d.(*ast.FuncDecl); ok && fn.Body != nil && contains(fn.Body, func(n ast.Node) bool {
				sel, ok := n.(*ast.SelectorExpr)
				return ok && isTestenv(sel) && sel.Sel.Name == "Lacks"
			}) {
				all[fn.Name.Name] = true
			}
		}
	}
	return all
}

// isTestenv reports whether a name is one of testenv.
func isTestenv(sel *ast.SelectorExpr) bool {
	x, ok := sel.X.(*ast.Ident)
	return ok && x.Name == "testenv"
}

// recorded reports whether a tree calls what says why a test ends.
func (r *rules) recorded(tree ast.Node) bool {
	return contains(tree, func(n ast.Node) bool {
		call, ok := n.(*ast.CallExpr)
		if !ok {
			return false
		}
		if sel, ok := call.Fun.(*ast.SelectorExpr); ok && isTestenv(sel) {
			return slices.Contains(skipping, sel.Sel.Name)
		}
		return r.lackers[calleeOf(call)]
	})
}

// asserts reports whether a tree can fail a test: it calls a method of t that fails or runs a
// subtest, or gives t to another function for nothing but that, whatever its results. The functions
// must, testenv.Must and value do not count: they only make sure that the machine did its work.
func (r *rules) asserts(tree ast.Node) bool {
	return contains(tree, func(n ast.Node) bool {
		call, ok := n.(*ast.CallExpr)
		if !ok {
			return false
		}
		if sel, ok := call.Fun.(*ast.SelectorExpr); ok && slices.Contains([]string{"Error", "Errorf", "Fatal", "Fatalf", "Fail", "FailNow", "Run"}, sel.Sel.Name) {
			x, ok := sel.X.(*ast.Ident)
			return ok && (x.Name == "t" || x.Name == "tb" || x.Name == "b")
		}
		return false
	}) || contains(tree, func(n ast.Node) bool {
		s, ok := n.(*ast.ExprStmt)
		if !ok {
			return false
		}
		call, ok := s.X.(*ast.CallExpr)
		if !ok || strings.EqualFold(calleeOf(call), "must") || calleeOf(call) == "closeLater" || r.recorded(call) {
			return false
		}
		return slices.ContainsFunc(call.Args, func(e ast.Expr) bool {
			id, ok := e.(*ast.Ident)
			return ok && (id.Name == "t" || id.Name == "tb" || id.Name == "b")
		})
	})
}

// calleeOf is the name of the function that a call calls.
func calleeOf(call *ast.CallExpr) string {
	switch fun := call.Fun.(type) {
	case *ast.Ident:
		return fun.Name
	case *ast.SelectorExpr:
		return fun.Sel.Name
	}
	return ""
}

// isTest reports whether a function is a test or a subtest: it takes a *testing.T and nothing else.
func isTest(f *ast.FuncType) bool {
	if f.Params == nil || len(f.Params.List) != 1 || f.Results != nil {
		return false
	}
	star, ok := f.Params.List[0].Type.(*ast.StarExpr)
	if !ok {
		return false
	}
	sel, ok := star.X.(*ast.SelectorExpr)
	return ok && sel.Sel.Name == "T"
}

// takesT reports whether a function takes a *testing.T or a testing.TB. One that returns a bool is among
// the places, and its callers are looked at.
func takesT(f *ast.FuncType) bool {
	return !returnsBool(f) && slices.ContainsFunc(f.Params.List, func(p *ast.Field) bool {
		return contains(p.Type, func(n ast.Node) bool {
			sel, ok := n.(*ast.SelectorExpr)
			return ok && (sel.Sel.Name == "T" || sel.Sel.Name == "TB")
		})
	})
}

// ending is a return of a test that a reader of its results cannot see.
type ending struct {
	at  token.Pos
	why string
}

// reason is what a statement depends on.
type reason uint8

const (
	byNothing reason = iota
	byPlace          // where the test runs
	byKernel         // the kernel's version
)

// reason returns what nodes depend on, at least what is so already.
func (r *rules) reason(already reason, nodes ...ast.Node) reason {
	for _, n := range nodes {
		switch {
		case n == nil:
		case r.kernel.in(n):
			already = byKernel
		case r.place.in(n):
			already = max(already, byPlace)
		}
	}
	return already
}

// within says where a list of statements is.
type within struct {
	asserted bool   // something was asserted before
	by       reason // what it depends on whether the list is executed
	byLoop   reason // the same, of what is within the innermost loop
	loop     bool   // a break without a label leaves a loop, not a switch or a select
}

// depends is in for what is executed only because of the given nodes.
func (in within) depends(r *rules, on ...ast.Node) within {
	in.by, in.byLoop = r.reason(in.by, on...), r.reason(in.byLoop, on...)
	return in
}

// endings finds the statements in a list that end a test, or the case of a loop, in silence: before
// anything is asserted, or because of where the test runs.
func (r *rules) endings(list []ast.Stmt, in within) (all []ending) {
	said, recorded := false, false // in this list: something that is true here, and why the test ends
	for _, s := range list {
		for label, ok := s.(*ast.LabeledStmt); ok; label, ok = s.(*ast.LabeledStmt) {
			s = label.Stmt
		}
		if what, label := leaves(s, in.loop); what != "" && !recorded {
			by := in.by
			if what == aCase && !label {
				by = in.byLoop
			}
			switch {
			case by == byKernel && (what != aCase || !said):
				all = append(all, ending{s.Pos(), what + " ends here because of the kernel's version, without testenv.Skip or testenv.Lacks"})
			case said:
			case by == byPlace:
				all = append(all, ending{s.Pos(), what + " ends here because of where it runs, without testenv and without an assertion about it"})
			case what == aTest && !in.asserted:
				all = append(all, ending{s.Pos(), what + " ends here before it has asserted anything"})
			}
		}
		all = append(all, r.nested(s, in)...)
		if r.asserts(s) {
			in.asserted, said = true, true
		}
		recorded = recorded || r.recorded(s)
	}
	return all
}

// What a statement ends. A helper ends when it returns nothing but zero values.
const aTest, aCase, aHelper = "a test", "a case of a loop", "a helper"

// leaves says what a statement ends, if it does, and whether it names a loop by a label.
func leaves(s ast.Stmt, loop bool) (what string, label bool) {
	switch s := s.(type) {
	case *ast.ReturnStmt:
		if len(s.Results) == 0 {
			return aTest, false
		}
		if !slices.ContainsFunc(s.Results, func(e ast.Expr) bool { return !isZero(e) }) {
			return aHelper, false
		}
	case *ast.BranchStmt:
		switch {
		case s.Tok == token.GOTO:
			return aTest, true
		case s.Tok == token.CONTINUE, s.Tok == token.BREAK && (loop || s.Label != nil):
			return aCase, s.Label != nil
		}
	case *ast.ExprStmt:
		if call, ok := s.X.(*ast.CallExpr); ok && slices.Contains([]string{"Goexit", "Exit"}, calleeOf(call)) {
			return aTest, false
		}
	}
	return "", false
}

// isZero reports whether an expression is a zero value.
func isZero(e ast.Expr) bool {
	switch e := e.(type) {
	case *ast.Ident:
		return e.Name == "nil" || e.Name == "false"
	case *ast.BasicLit:
		return e.Value == "0" || e.Value == `""`
	}
	return false
}

// nested is endings for the lists in a statement.
func (r *rules) nested(s ast.Stmt, in within) (all []ending) {
	switch s := s.(type) {
	case *ast.IfStmt:
		return r.ifEndings(s, in)
	case *ast.SwitchStmt:
		return r.clauses(s.Body, in, s.Init, s.Tag)
	case *ast.TypeSwitchStmt:
		return r.clauses(s.Body, in, s.Init, s.Assign)
	case *ast.SelectStmt:
		return r.clauses(s.Body, in)
	case *ast.ForStmt:
		in.asserted, in.loop = in.asserted || r.asserts(s), true
		in.by, in.byLoop = r.reason(in.by, s.Init, s.Cond), byNothing
		return r.endings(s.Body.List, in)
	case *ast.RangeStmt:
		in.asserted, in.loop, in.byLoop = in.asserted || r.asserts(s), true, byNothing
		return r.endings(s.Body.List, in)
	case *ast.BlockStmt:
		return r.endings(s.List, in)
	}
	return nil
}

// clauses is endings for the clauses of a switch or a select, which depend on what is before them.
// A default depends on the conditions of all.
func (r *rules) clauses(body *ast.BlockStmt, in within, before ...ast.Node) (all []ending) {
	in.loop = false
	in = in.depends(r, before...)
	every := in
	for _, c := range body.List {
		if c, ok := c.(*ast.CaseClause); ok {
			for _, e := range c.List {
				every = every.depends(r, e)
			}
		}
	}
	for _, c := range body.List {
		one := in
		recorded := false
		switch c := c.(type) {
		case *ast.CaseClause:
			if c.List == nil {
				one = every
			}
			for _, e := range c.List {
				one = one.depends(r, e)
				recorded = recorded || r.recorded(e)
			}
			if !recorded {
				all = append(all, r.endings(c.Body, one)...)
			}
		case *ast.CommClause:
			if c.Comm != nil {
				one = one.depends(r, c.Comm)
				recorded = r.recorded(c.Comm)
			}
			if !recorded {
				all = append(all, r.endings(c.Body, one)...)
			}
		}
	}
	return all
}

// ifEndings is endings for an if and its else.
func (r *rules) ifEndings(s *ast.IfStmt, in within) (all []ending) {
	in = in.depends(r, s.Init, s.Cond)
	if !r.recorded(s.Cond) && (s.Init == nil || !r.recorded(s.Init)) {
		all = r.endings(s.Body.List, in)
	}
	switch e := s.Else.(type) {
	case *ast.IfStmt:
		all = append(all, r.ifEndings(e, in)...)
	case *ast.BlockStmt:
		all = append(all, r.endings(e.List, in)...)
	}
	return all
}

// silentReturns reports the silent ends of a package's tests, and returns how many tests and subtests
// it has.
func silentReturns(pkg []*file, report func(*file, ending)) (tests int) {
	place, kernel, lackers := placesOf(pkg, environment), placesOf(pkg, kernels), lackersOf(pkg)
	for _, f := range pkg {
		for _, d := range f.ast.Decls {
			fn, ok := d.(*ast.FuncDecl)
			if !ok || fn.Body == nil || fn.Name.Name == "TestMain" {
				continue
			}
			r := &rules{place.local(fn.Body), kernel.local(fn.Body), lackers}
			check := func(typ *ast.FuncType, body *ast.BlockStmt) {
				if !takesT(typ) {
					return
				}
				if isTest(typ) {
					tests++
				}
				// A helper is not the whole test.
				for _, e := range r.endings(body.List, within{asserted: !isTest(typ)}) {
					report(f, e)
				}
			}
			check(fn.Type, fn.Body)
			ast.Inspect(fn.Body, func(n ast.Node) bool {
				if lit, ok := n.(*ast.FuncLit); ok {
					check(lit.Type, lit.Body)
				}
				return true
			})
		}
	}
	return tests
}

// TestSilentReturns: a test that ends early says so by testenv, or else it counts as passed: where
// that depends on the kernel, the device, the architecture or the environment, and wherever it has
// not asserted anything yet.
func TestSilentReturns(t *testing.T) {
	t.Parallel()
	byPkg := map[string][]*file{}
	for _, f := range files(t) {
		if f.test() {
			byPkg[f.pkg()] = append(byPkg[f.pkg()], f)
		}
	}
	tests := 0
	for _, pkg := range byPkg {
		tests += silentReturns(pkg, func(f *file, e ending) { t.Errorf("%s: %s", f.set.Position(e.at), e.why) })
	}
	if tests < 1000 {
		t.Errorf("only %d tests and subtests were found", tests)
	}
}

// TestEndings: which returns are taken for a silent end.
func TestEndings(t *testing.T) {
	for body, want := range map[string]string{
		`if runtime.GOARCH != "amd64" { return }; t.Error()`:                             "where it runs",
		`t.Log(); x := os.Getenv("X"); t.Error(); if x == "" { return }`:                 "where it runs",
		`t.Error(); if onMLX5 { return }`:                                                "where it runs",
		`if onMLX5 { says(t, err); return }; t.Error()`:                                  "",
		`if rxeBefore(t, 6, 0) { t.Error(); return }`:                                    "kernel's version",
		`if rxeBefore(t, 6, 0) { testenv.Skip(t, err); return }`:                         "",
		`if rxeBefore(t, 6, 0) { absent(t, err); return }`:                               "",
		`old := rxeBefore(t, 6, 0); t.Error(); if old { return }`:                        "kernel's version",
		`switch { case rig.IWARP(): return }; t.Error()`:                                 "where it runs",
		`if x { return }; t.Error()`:                                                     "before it has asserted",
		`must(t, err); if x { return }; t.Error()`:                                       "before it has asserted",
		`t.Error(); if x { return }`:                                                     "",
		`if x { t.Error(); return }`:                                                     "",
		`if isOld() { return }; t.Error()`:                                               "kernel's version",
		`t.Run("x", func(t *testing.T) { if onMLX5 { return }; t.Error() })`:             "where it runs",
		`select { case <-x: return; default: }; t.Error()`:                               "before it has asserted",
		`t.Error(); select { case <-x: if onMLX5 { return } }`:                           "where it runs",
		`t.Error(); switch x.(type) { case error: if onMLX5 { return } }`:                "where it runs",
		`switch x := y.(type) { case error: return }; t.Error()`:                         "before it has asserted",
		`L: if onMLX5 { return }; t.Error()`:                                             "where it runs",
		`t.Error(); switch { case onMLX5: t.Error(); default: return }`:                  "where it runs",
		`for range x { if onMLX5 { continue }; t.Error() }`:                              "a case of a loop ends here because of where it runs",
		`for range x { if isOld() { break }; t.Error() }`:                                "a case of a loop ends here because of the kernel's version",
		`for range x { if isOld() { says(t, err); continue }; t.Error() }`:               "",
		`for range x { if isOld() { testenv.Skip(t, err); continue }; t.Error() }`:       "",
		`for range x { if y { continue }; t.Error() }`:                                   "",
		`for range x { switch { case onMLX5: break; default: t.Error() } }`:              "",
		`L: for range x { switch { case onMLX5: break L }; t.Error() }`:                  "a case of a loop ends here because of where it runs",
		`for range x { select { case <-y: if onMLX5 { continue } }; t.Error() }`:         "a case of a loop ends here because of where it runs",
		`if onMLX5 { for { if x { break } }; t.Error() }`:                                "",
		`for range x { if onMLX5 { for { continue } }; t.Error() }`:                      "",
		`t.Error(); if onMLX5 { goto end }; t.Error(); end:`:                             "where it runs",
		`t.Error(); if onMLX5 { runtime.Goexit() }`:                                      "where it runs",
		`if x { os.Exit(0) }; t.Error()`:                                                 "before it has asserted",
		`if err == nil { if testenv.TheRig().IWARP() { return } } else { t.Error(err) }`: "where it runs",
	} {
		src := "package p\nfunc absent(t *testing.T, err error) { testenv.Lacks(t, err) }\nfunc isOld() bool { return kernelVersion() < 6 }\n" +
			"func TestX(t *testing.T) {" + body + "}"
		f := &file{set: token.NewFileSet()}
		var err error
		if f.ast, err = parser.ParseFile(f.set, "x_test.go", src, parser.SkipObjectResolution); err != nil {
			t.Fatal(err)
		}
		var got []string
		silentReturns([]*file{f}, func(_ *file, e ending) { got = append(got, e.why) })
		if want == "" && got != nil || want != "" && (len(got) != 1 || !strings.Contains(got[0], want)) {
			t.Errorf("%s: %q, want %q", body, got, want)
		}
	}
}
