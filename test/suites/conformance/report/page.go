package report

import (
	"html/template"
	"strings"

	"github.com/goverbs/goverbs/test/internal/matrix"
)

// intro is what the page has above the table.
const intro = `<p>{{count .Report.Counts}} of {{len .Report.Tests}} tests, in {{printf "%.0f" .Report.Seconds}} s{{if .Report.Interrupted}}; interrupted{{end}}.
Each row of the table is a test; the first column is this run, the others are the published results of the same
driver. Point at a row or a symbol for more.</p>
<dl>
<dt>kernel</dt><dd>{{.Report.Machine.Kernel}}</dd>
<dt>machine</dt><dd>{{.Report.Machine.Arch}}, {{.Report.Machine.CPUs}} processors{{with .Report.Machine.Taint}}, kernel tainted {{.}}{{end}}</dd>
<dt>program</dt><dd>goverbs {{.Report.Version}}, started {{.Report.Begin.UTC.Format "2006-01-02 15:04:05"}} UTC with {{.Command}}</dd>
{{- range .Report.Devices}}
<dt>{{.Device}}</dt><dd>driver {{.Driver}}{{with .FwVer}}, firmware {{.}}{{end}}, {{.LinkLayer}}, port {{.State}}{{with .Rate}}, {{.}}{{end}}{{with .Netdev}}, on {{.}}{{end}}
<details><summary>capabilities</summary><dl>
{{- range $k, $v := .Sysfs}}<dt>{{$k}}</dt><dd>{{$v}}</dd>{{end}}
{{- range .GIDs}}<dt>GID</dt><dd>{{.}}</dd>{{end}}
{{- range $k, $v := .Attributes}}<dt>{{$k}}</dt><dd>{{$v}}</dd>{{end}}</dl></details></dd>
{{- end}}
</dl>
{{- with .Comparison}}<pre>{{.}}</pre>{{end}}
{{- with .Bugs}}<h2>Known bugs of this kernel or driver, which tests tolerated</h2><pre>{{lines .}}</pre>{{end}}
{{- with .Report.Notes}}<h2>Notes</h2><pre>{{lines .}}</pre>{{end}}
{{- with .Report.KernelLog}}<h2>Warnings in the kernel's log</h2><pre>{{lines .}}</pre>{{end}}
{{- with .Failures}}<h2>Failed</h2>
{{- range .}}
<h3>{{.Test}}</h3>
<p>{{printf "%.2f" .Seconds}} s{{with .Reason}}; {{.}}{{end}}{{with .Alone}}; again by itself: {{.}}{{end}}</p>
<pre>{{output .Output}}</pre>
{{- with .Trace}}<details><summary>{{len .}} commands that it gave the kernel</summary><pre>{{lines .}}</pre></details>{{end}}
{{- end}}{{end}}
<h2>All tests</h2>`

// intros is the parsed template.
var intros = template.Must(template.New("intro").Funcs(template.FuncMap{
	"count":  count,
	"lines":  func(all []string) string { return strings.Join(all, "\n") },
	"output": func(s string) string { return strings.Join(trimOutput(s), "\n") },
}).Parse(intro))

// page renders the report as a page that needs nothing else.
func (r *Report) page() ([]byte, error) {
	c, err := r.compare(r.other())
	if err != nil {
		return nil, err
	}
	var b strings.Builder
	data := struct {
		Report     *Report
		Command    string
		Comparison string
		Failures   []*Result
		Bugs       []string
	}{r, "conformance " + strings.Join(r.Command, " "), c.String(), r.failures(), r.bugs()}
	if err := intros.Execute(&b, data); err != nil {
		return nil, err
	}
	return c.table.HTML("RDMA conformance of "+r.Devices[0].Device+" on Linux "+r.Machine.Release, template.HTML(b.String()))
}

// Counts counts the outcomes of whole tests.
func (r *Report) Counts() map[matrix.Outcome]int { return r.counts() }
