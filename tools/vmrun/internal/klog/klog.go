// Package klog reads a kernel's log and tells which of it is a failure: oopses,
// warnings, hung tasks, stalls, and the reports of lockdep and the sanitizers.
package klog

import (
	"regexp"
	"strconv"
	"strings"
	"time"
)

// Report is one complaint of the kernel, with its trace.
type Report struct {
	Headline string   // Headline is the line that says what is wrong.
	Lines    []string // Lines are all lines of the report, the headline among them.
	Fatal    bool     // Fatal is set if the kernel can't be relied on any more: an oops, a panic.
	Known    *Bug     // Known is the entry of the list of known bugs that it matches, or nil.
}

// Judge collects the reports in one kernel's log. It is for one goroutine.
type Judge struct {
	bugs    []Bug
	release string
	reports []*Report
	open    *Report // the report that lines still belong to
	last    time.Duration
	soft    bool   // its headline is a mere message, and the real one may follow
	banner  string // a line of "=" that came just before
}

// NewJudge returns a judge that lets pass what stands on the list of bugs.
func NewJudge(bugs []Bug) *Judge { return &Judge{bugs: bugs} }

// SetRelease says which kernel it is, as uname -r does. It must be called before
// Reports.
func (j *Judge) SetRelease(release string) { j.release = release }

// What a report begins with. All of it is at the beginning of a line: "traps:
// prog[7] general protection fault ip:..." is a program's fault, and drivers
// print words such as "warning" in messages that are none.
var headlines = []struct {
	re    *regexp.Regexp
	fatal bool
	inner bool // inner lines may also come inside another report
}{
	{re: regexp.MustCompile(`^WARNING: `)},
	{re: regexp.MustCompile(`^(watchdog: )?BUG: (soft lockup|workqueue lockup)`)},
	{re: regexp.MustCompile(`^watchdog: .*hard LOCKUP`)},
	{re: regexp.MustCompile(`^BUG: (KASAN|KFENCE|KCSAN|KMSAN|sleeping function|scheduling while atomic|using |Bad (page|rss)|MAX_LOCK|looking up|spinlock)`)},
	{re: regexp.MustCompile(`^BUG: `), fatal: true},
	{re: regexp.MustCompile(`^kernel BUG at `), fatal: true},
	{re: regexp.MustCompile(`^(Oops|Internal error|general protection fault|stack segment|divide error|invalid opcode|double fault|int3)\b.*(\[#\d+\]|: [0-9a-f]{4}|Oops)`), fatal: true, inner: true},
	{re: regexp.MustCompile(`^Unable to handle kernel `), fatal: true},
	{re: regexp.MustCompile(`^Kernel panic - not syncing`), fatal: true, inner: true},
	{re: regexp.MustCompile(`^INFO: task .* blocked (for more than|on a )`)},
	{re: regexp.MustCompile(`^INFO: (possible |inconsistent lock|trying to register non-static key|lockdep is turned off)`)},
	{re: regexp.MustCompile(`^(rcu: )?INFO: rcu\w* (self-)?detected (expedited )?stalls?`)},
	{re: regexp.MustCompile(`^rcu: .*(kthread starved|kthread timer wakeup didn't happen)`), inner: true},
	{re: regexp.MustCompile(`^(UBSAN|KCSAN|DMA-API|kmemleak): `)},
	{re: regexp.MustCompile(`^refcount_t: `), inner: true},
	{re: regexp.MustCompile(`^list_(add|del) corruption`), inner: true},
	{re: regexp.MustCompile(`^unregister_netdevice: waiting for `)},
	{re: regexp.MustCompile(`^sysfs: cannot create duplicate filename`)},
	{re: regexp.MustCompile(`^ODEBUG: `), inner: true},
}

var (
	ruler    = regexp.MustCompile(`^={20,}$`)
	cutHere  = regexp.MustCompile(`^-+\[ cut here \]-+$`)
	endTrace = regexp.MustCompile(`^---\[ end (trace|Kernel panic)`)
	// Debian's lockdep-free kernels never print it, others do when they boot.
	harmless = regexp.MustCompile(`^(INFO: lockdep is turned off|kmemleak: (Kernel memory leak detector initialized|Automatic memory scanning|Cannot|Memory pool))`)
)

const (
	// gap is the pause after which a line no longer belongs to a report that has
	// no end mark. Printing a trace to a slow console takes a while.
	gap = 500 * time.Millisecond
	// longest is the number of lines after which a report is taken to be over.
	longest = 300
)

// Record takes one record as /dev/kmsg gives it: "PRIO,SEQ,USEC,FLAGS[,...];TEXT"
// and lines of a dictionary. One that a program wrote into the log, or that is
// no record, is ignored.
func (j *Judge) Record(rec []byte) {
	if t, text, ok := parseRecord(string(rec)); ok {
		j.line(t, text)
	}
}

func parseRecord(rec string) (t time.Duration, text string, ok bool) {
	head, text, ok := strings.Cut(rec, ";")
	f := strings.Split(head, ",")
	if !ok || len(f) < 3 {
		return 0, "", false
	}
	prio, err := strconv.Atoi(f[0])
	if err != nil || prio>>3 != 0 { // facility 0 is the kernel
		return 0, "", false
	}
	usec, err := strconv.ParseInt(f[2], 10, 64)
	if err != nil {
		return 0, "", false
	}
	text, _, _ = strings.Cut(text, "\n")
	return time.Duration(usec) * time.Microsecond, text, true
}

// Text gives the message of a record of /dev/kmsg, to show it.
func Text(rec []byte) string {
	head, text, ok := strings.Cut(string(rec), ";")
	if !ok {
		return head
	}
	text, _, _ = strings.Cut(text, "\n")
	return text
}

var consolePrefix = regexp.MustCompile(`^(?:<\d+>)?\[ *(\d+)\.(\d{6})\](?:\[ *[TC]\d+\])? ?`)

// Console takes one line of the kernel's console: "[   12.345678] TEXT".
func (j *Judge) Console(line string) {
	line = strings.TrimRight(line, "\r\n")
	m := consolePrefix.FindStringSubmatch(line)
	if m == nil {
		return
	}
	usec, err := strconv.ParseInt(m[1]+m[2], 10, 64)
	if err != nil {
		return
	}
	j.line(time.Duration(usec)*time.Microsecond, line[len(m[0]):])
}

func (j *Judge) line(t time.Duration, text string) {
	if j.open != nil && (t-j.last > gap || len(j.open.Lines) >= longest) {
		j.open = nil
	}
	j.last = t
	switch {
	case cutHere.MatchString(text):
		// A message may come before this line, or after it: then comes the warning.
		if j.open == nil || !j.soft {
			j.begin(text, false, true)
		}
	case j.open == nil && ruler.MatchString(text):
		j.banner = text
		return
	case !harmless.MatchString(text):
		for _, h := range headlines {
			if h.re.MatchString(text) {
				j.headline(text, h.fatal, h.inner)
				break
			}
		}
	}
	j.banner = ""
	if j.open == nil {
		return
	}
	j.open.Lines = append(j.open.Lines, text)
	if endTrace.MatchString(text) {
		j.open = nil
	}
}

// headline opens a report, or gives the open one its headline.
func (j *Judge) headline(text string, fatal, inner bool) {
	switch {
	case j.open == nil || !inner && !j.soft:
		j.begin(text, fatal, inner && !fatal)
	case !inner:
		j.open.Headline, j.soft = text, false
		fallthrough
	default:
		j.open.Fatal = j.open.Fatal || fatal
	}
}

func (j *Judge) begin(headline string, fatal, soft bool) {
	j.open, j.soft = &Report{Headline: headline, Fatal: fatal}, soft
	if j.banner != "" {
		j.open.Lines = append(j.open.Lines, j.banner)
	}
	j.reports = append(j.reports, j.open)
}

// Fatal reports whether the kernel can't be relied on any more.
func (j *Judge) Fatal() bool {
	for _, r := range j.reports {
		if r.Fatal {
			return true
		}
	}
	return false
}

// Reports gives the reports so far. A known bug has its entry set.
func (j *Judge) Reports() []*Report {
	for i, r := range j.reports {
		r.Known = match(j.bugs, j.release, j.reports[:i], r)
	}
	return j.reports
}

// Merge adds the reports of another judge who heard the same kernel over another
// way. Of a report that both have, the longer one stays: a panic may cut either
// short.
func (j *Judge) Merge(other *Judge) {
	have := map[string]*Report{}
	for _, r := range j.reports {
		have[r.Headline] = r
	}
	for _, r := range other.reports {
		switch mine := have[r.Headline]; {
		case mine == nil:
			j.reports = append(j.reports, r)
		case len(r.Lines) > len(mine.Lines):
			mine.Lines = r.Lines
		}
	}
}
