package health

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"math"
	"path"
	"slices"
	"sort"
	"strconv"
	"strings"
	"time"

	"github.com/goverbs/goverbs/netlinkrdma"
	"github.com/goverbs/goverbs/tools/internal/counter"
	"github.com/goverbs/goverbs/tools/internal/proc"
	"github.com/goverbs/goverbs/uverbs"
	"github.com/goverbs/goverbs/uverbs/ib"
)

// glimpse is what a device says at one time. A field that could not be read is empty.
type glimpse struct {
	ports   map[uint32]portGlimpse
	objects *tracked // nil if they were not listed
	opened  error    // why the device could not be opened
	err     error    // why its ports could not be listed
}

// tracked are those objects of a device that a rule is about.
type tracked struct {
	broken []netlinkrdma.QP // QPs in state ERR
	owners []uint32         // threads that have made MRs
	took   time.Duration
}

// listObjects lists the objects of a device.
func listObjects(dev netlinkrdma.Device) *tracked {
	begun := time.Now()
	qps, _ := netlinkrdma.QPs(dev, netlinkrdma.ListOptions{Driver: true}) // the exporter says what cannot be read
	o := &tracked{broken: slices.DeleteFunc(qps, func(q netlinkrdma.QP) bool { return q.State != ib.QPErr })}
	mrs, _ := netlinkrdma.MRs(dev)
	for _, m := range mrs {
		if m.PID != 0 && !slices.Contains(o.owners, m.PID) {
			o.owners = append(o.owners, m.PID)
		}
	}
	o.took = time.Since(begun)
	return o
}

// portGlimpse is what a port says at one time.
type portGlimpse struct {
	state    ib.PortState
	rate     float64        // in Gb/s; 0 if it is not known
	lanes    int            // 0 if it is not known
	gids     map[int]string // nil if they are not known
	counters map[string]uint64
}

// glimpseAt looks at a device.
func glimpseAt(d watched) (g glimpse) {
	g.ports = map[uint32]portGlimpse{}
	if !d.info.InProcess {
		ports, err := netlinkrdma.Ports(d.dev)
		for _, p := range ports {
			counters := map[string]uint64{}
			for _, list := range []func(netlinkrdma.Device, uint32) ([]netlinkrdma.Counter, error){netlinkrdma.PortCounters, netlinkrdma.StandardCounters} {
				all, _ := list(d.dev, p.Num) // the exporter says what cannot be read
				addCounters(counters, all)
			}
			g.ports[p.Num] = portGlimpse{state: p.State, counters: counters}
		}
		g.err = err
		if d.objects {
			g.objects = listObjects(d.dev)
		}
	}
	dev, err := uverbs.Open(d.info.Name, uverbs.OpenOptions{})
	if err != nil {
		g.opened = err
		return g
	}
	defer dev.Close()
	for num := uint32(1); num <= min(d.dev.Ports, math.MaxUint8); num++ { // verbs know no others
		a, err := dev.Port(uint8(num))
		if err != nil {
			g.opened = errors.Join(g.opened, err)
			continue
		}
		p := g.ports[num]
		p.state, p.lanes = a.State, a.ActiveWidth.Lanes()
		p.rate = float64(p.lanes) * a.ActiveSpeed.Gbps()
		if table, err := dev.GIDTable(uint8(num)); err == nil {
			p.gids = map[int]string{}
			for _, e := range table {
				p.gids[e.Index] = fmt.Sprintf("%s, %s", e.GID.Addr(), e.Type)
			}
		}
		if d.info.InProcess {
			all, _ := dev.PortCounters(uint8(num))
			p.counters = map[string]uint64{}
			addCounters(p.counters, all)
		}
		g.ports[num] = p
	}
	return g
}

// addCounters keeps the counters that a rule is about.
func addCounters(to map[string]uint64, all []netlinkrdma.Counter) {
	for _, c := range all {
		if ruleOf(c.Name) != nil {
			to[c.Name] = c.Value
		}
	}
}

// counterRule says what it means that a counter grows.
type counterRule struct {
	words []string // parts of the names of the counters
	level Level
	means string
	fix   string
}

// counterRules are about counters of errors, in order. Their words are parts of the names that drivers and InfiniBand give.
var counterRules = []counterRule{
	{[]string{"link_downed", "link_error_recovery"}, LevelWarning, "the link went down or had to recover",
		"look after the cable, its transceivers and the peer's port"},
	{[]string{"symbol_err", "port_rcv_err", "rcv_remote_phys", "local_link_integrity", "icrc", "crc_err", "buffer_overrun"}, LevelWarning, "packets arrive damaged",
		"clean or replace the cable and its transceivers; if both ends of the link count, the cable, else the sender's port"},
	{[]string{"out_of_buffer", "rnr", "no_receive"}, LevelWarning, "a program had no receive posted when a message came",
		"have the program post more receives, or sooner: verbs res show qp says whose QPs there are"},
	{[]string{"access_err", "_cqe_err", "cqe_flush", "invalid_request", "length_err", "constraint_err", "qkey_viol", "pkey_viol", "refused", "rx_bad_", "rx_wrong_", "rx_unknown_"}, LevelWarning, "a request was refused",
		"find the program whose requests are wrong: verbs trace shows them"},
	{[]string{"seq_err", "out_of_seq", "out_of_order", "ack_timeout", "retry", "dup", "retrans"}, LevelWarning, "packets were lost, and sent again",
		"look for drops and pauses in the switches of the network, and compare their settings of ECN and PFC"},
	{[]string{"discard", "drop", "send_err", "overflow"}, LevelWarning, "packets were dropped here",
		"look for congestion: ECN and PFC of the switches, and the load of this port"},
	{[]string{""}, LevelWarning, "errors are counted", "verbs stat --help says what the counters mean"},
}

// congestion is the rule of counters of congestion.
var congestion = counterRule{nil, LevelInfo, "the network is congested, and senders slow down", ""}

// ruleOf returns the rule of a counter, or nil.
func ruleOf(name string) *counterRule {
	if counter.IsCongestion(name) {
		return &congestion
	}
	if !counter.IsError(name) {
		return nil
	}
	name = strings.ToLower(name)
	i := slices.IndexFunc(counterRules, func(r counterRule) bool {
		return slices.ContainsFunc(r.words, func(word string) bool { return strings.Contains(name, word) })
	})
	return &counterRules[i] // the last one has all
}

// Times after which a fact counts, or no longer.
const (
	brokenTime = time.Minute        // a QP that is in state ERR for longer is forgotten by its program
	remember   = 7 * 24 * time.Hour // a device that is gone, and the best rate of a port
)

// missing returns findings about devices that were there, or are named, and are not. It forgets old ones.
func (w *Watch) missing(devices map[string]watched, now time.Time) (all []Finding) {
	byGUID := map[string]string{}
	for name, d := range devices {
		if d.info.NodeGUID != 0 {
			byGUID[d.info.NodeGUID.String()] = name
		}
	}
	known := slices.Collect(maps.Keys(w.past.Devices))
	known = append(known, w.o.Devices...)
	slices.Sort(known)
	for _, name := range slices.Compact(known) {
		d := w.past.Devices[name]
		if _, there := devices[name]; there {
			continue
		}
		f := Finding{Code: CodeDeviceGone, Device: name}
		f.fix("verbs events shows devices as they come and go; dmesg says what the driver did")
		switch {
		case d == nil:
			f.see("devices here: %s", choose(len(devices) > 0, strings.Join(slices.Sorted(maps.Keys(devices)), ", "), "none"))
			all = append(all, f.conclude(LevelError, "there is no such device, and there was none"))
			continue
		case byGUID[d.NodeGUID] != "" && w.past.Devices[byGUID[d.NodeGUID]] == nil: // it was renamed
			w.past.Devices[byGUID[d.NodeGUID]] = d
			delete(w.past.Devices, name)
			continue
		case now.Sub(d.Last) > remember:
			delete(w.past.Devices, name)
			continue
		}
		if len(w.o.Devices) > 0 && !slices.Contains(w.o.Devices, name) {
			continue
		}
		f.see("node GUID %s, last seen %s", d.NodeGUID, when(d.Last))
		all = append(all, f.conclude(LevelError, "the device has disappeared"))
	}
	return all
}

// when prints a time for people.
func when(t time.Time) string { return t.Local().Format(time.DateTime) }

// compare compares a device with its past, and keeps what it is now.
func (w *Watch) compare(name string, info uverbs.DeviceInfo, g *glimpse, now time.Time) (all []Finding) {
	d, guid := w.past.Devices[name], info.NodeGUID.String()
	if d == nil || d.NodeGUID != guid && !info.InProcess { // a new one, or another one with the name
		d = &pastDevice{}
		w.past.Devices[name] = d
	}
	if d.NodeGUID != guid { // one inside this process has other GIDs in each process
		for _, p := range d.Ports {
			p.GIDs = nil
		}
	}
	d.NodeGUID, d.Last = guid, now
	f := Finding{Code: CodeOpen, Device: name}
	switch {
	case g.err != nil:
		f.see("%s", g.err)
		all = append(all, f.conclude(LevelError, "its ports cannot be listed"))
	case g.opened != nil:
		f.see("%s", g.opened)
		level := choose(errors.Is(g.opened, fs.ErrPermission), LevelInfo, LevelWarning)
		all = append(all, f.conclude(level, "the device cannot be opened and asked, so its rate and GIDs are not watched"))
	}
	if d.Ports == nil {
		d.Ports = map[uint32]*pastPort{}
	}
	nums := slices.Collect(maps.Keys(g.ports))
	sort.Slice(nums, func(i, j int) bool { return nums[i] < nums[j] })
	for _, num := range nums {
		p := d.Ports[num]
		if p == nil {
			p = &pastPort{}
			d.Ports[num] = p
		}
		w.note(p, g.ports[num], now)
		for _, f := range w.checkPast(info, p, g.ports[num], now) {
			f.Device, f.Port = name, int(num)
			all = append(all, f)
		}
	}
	return append(all, w.checkBroken(name, d, g.objects.broken, now))
}

// mostMoves limits the moves of a port of one kind.
const mostMoves = 256

// note keeps what a port is now, and what has changed.
func (w *Watch) note(p *pastPort, g portGlimpse, now time.Time) {
	p.Moves = slices.DeleteFunc(p.Moves, func(m move) bool { return now.Sub(m.At) > w.o.Window || m.At.After(now) })
	add := func(kind, text string) {
		n := 0
		for i := len(p.Moves) - 1; i >= 0; i-- {
			if p.Moves[i].Kind == kind {
				if n++; n >= mostMoves {
					p.Moves = slices.Delete(p.Moves, i, i+1)
				}
			}
		}
		p.Moves = append(p.Moves, move{At: now, Kind: kind, Text: text})
	}
	if state := g.state.String(); p.State != state {
		if p.State != "" {
			add(moveLink, p.State+" to "+state)
		}
		p.State, p.Since = state, now
	}
	active := g.state == ib.PortActive && g.rate > 0 // a port that is down may have any rate
	if active && (g.rate >= p.Best || now.Sub(p.BestAt) > remember) {
		p.Best, p.BestAt = g.rate, now
	}
	if g.gids != nil {
		for _, text := range gidChanges(p.GIDs, g.gids) {
			add(moveGID, text)
		}
		p.GIDs = g.gids
	}
	if p.Counters == nil {
		p.Counters = map[string]uint64{}
	}
	for name, value := range g.counters {
		before, known := p.Counters[name]
		p.Counters[name] = value
		if value < before { // the driver was loaded again
			before = 0
		}
		if known && value > before {
			w.count(p, name, value-before, now)
		}
	}
}

// count adds to what a counter has grown by. The window has 60 parts, each with one move.
func (w *Watch) count(p *pastPort, name string, n uint64, now time.Time) {
	for i := range p.Moves {
		if m := &p.Moves[i]; m.Kind == moveCounter && m.Text == name && now.Sub(m.At) < w.o.Window/60 {
			m.N += n
			return
		}
	}
	p.Moves = append(p.Moves, move{now, moveCounter, name, n})
}

// gidChanges says what differs between two tables. The first is nil if it is not known.
func gidChanges(before, now map[int]string) (all []string) {
	if before == nil {
		return nil
	}
	index := slices.Concat(slices.Collect(maps.Keys(before)), slices.Collect(maps.Keys(now)))
	slices.Sort(index)
	for _, i := range slices.Compact(index) {
		was, is := before[i], now[i]
		switch {
		case was == is:
		case was == "":
			all = append(all, fmt.Sprintf("index %d: %s came", i, is))
		case is == "":
			all = append(all, fmt.Sprintf("index %d: %s went", i, was))
		default:
			all = append(all, fmt.Sprintf("index %d: %s became %s", i, was, is))
		}
	}
	return all
}

// checkPast returns what is wrong with a port, by what it was.
func (w *Watch) checkPast(info uverbs.DeviceInfo, p *pastPort, g portGlimpse, now time.Time) (all []Finding) {
	moves := map[string][]move{}
	for _, m := range p.Moves {
		moves[m.Kind] = append(moves[m.Kind], m)
	}
	active := g.state == ib.PortActive
	links := Finding{Code: CodeLink}
	links.see("%s since %s", p.State, when(p.Since))
	for _, m := range moves[moveLink] {
		links.see("%s %s", when(m.At), m.Text)
	}
	links.fix("look after the cable, its transceivers and the peer's port; verbs events shows each change")
	switch n := len(moves[moveLink]); {
	case !active:
		all = append(all, links.conclude(LevelError, "the port is %s", p.State))
	case n > 0:
		all = append(all, links.conclude(LevelWarning, "the port is ACTIVE, and has changed its state %s in the last %v", times(n), w.o.Window))
	}
	if rate, why := w.expected(info, p); active && g.rate > 0 && g.rate < rate {
		f := Finding{Code: CodeSpeed}
		f.see("%g Gb/s by %s", g.rate, plural(g.lanes, "lane"))
		f.see("%g Gb/s: %s", rate, why)
		f.fix("look after the cable and its transceivers, and the speed that the peer's port is set to")
		all = append(all, f.conclude(LevelWarning, "the rate is %g Gb/s, less than %g Gb/s", g.rate, rate))
	}
	if gids := moves[moveGID]; len(gids) > 0 {
		f := Finding{Code: CodeGIDChange}
		for _, m := range gids {
			f.see("%s %s", when(m.At), m.Text)
		}
		f.fix("start programs again that keep the index of a GID; ip monitor address says who changes addresses")
		all = append(all, f.conclude(LevelInfo, "the GID table has changed %s in the last %v", times(len(gids)), w.o.Window))
	}
	return append(all, w.checkCounters(moves[moveCounter]))
}

// times says how often.
func times(n int) string { return plural(n, "time") }

// expected returns the rate that a port should have, and why.
func (w *Watch) expected(info uverbs.DeviceInfo, p *pastPort) (rate float64, why string) {
	rate, why = p.Best, "it had that "+when(p.BestAt)
	if w.o.Expect == nil {
		return rate, why
	}
	for i, e := range w.o.Expect.Ports {
		if match, _ := path.Match(e.Device, info.Name); (match || e.Device == "") && (e.Driver == "" || e.Driver == info.Driver) && e.Rate > rate {
			rate, why = e.Rate, fmt.Sprintf("ports[%d] of the expectation", i)
		}
	}
	return rate, why
}

// checkCounters says which counters have grown.
func (w *Watch) checkCounters(moves []move) Finding {
	grown, last := map[string]uint64{}, map[string]time.Time{}
	for _, m := range moves {
		grown[m.Text] += m.N
		last[m.Text] = m.At
	}
	f, level := Finding{Code: CodeCounters}, LevelOK
	var short []string
	for _, name := range slices.Sorted(maps.Keys(grown)) {
		r := ruleOf(name)
		if r == nil { // in the file of another version
			continue
		}
		f.see("%s: %d more in the last %v, the last at about %s: %s", name, grown[name], w.o.Window, when(last[name]), r.means)
		if r.fix != "" && !slices.Contains(f.Fix, r.fix) {
			f.fix("%s", r.fix)
		}
		short = append(short, fmt.Sprintf("%s +%d", name, grown[name]))
		if level != LevelWarning {
			level = r.level
		}
	}
	if len(short) == 0 {
		return Finding{}
	}
	const most = 4
	if n := len(short) - most; n > 0 {
		short = append(short[:most], fmt.Sprintf("%d others", n))
	}
	return f.conclude(level, "%s in the last %v", strings.Join(short, ", "), w.o.Window)
}

// checkBroken looks for QPs that stay in state ERR.
func (w *Watch) checkBroken(name string, d *pastDevice, broken []netlinkrdma.QP, now time.Time) Finding {
	before := d.Broken
	d.Broken = map[uint32]time.Time{}
	f := Finding{Code: CodeQPError, Device: name}
	n := 0
	const most = 20
	for _, q := range broken {
		since, known := before[q.Num]
		if !known || since.After(now) {
			since = now
		}
		d.Broken[q.Num] = since
		if now.Sub(since) < brokenTime {
			continue
		}
		if n++; n <= most {
			f.see("QP %d of %s, %s, since %s", q.Num, w.m.owner(q.Owner), cmp.Or(q.Subtype, q.Type.String()), when(since))
		}
	}
	if n == 0 {
		return Finding{}
	}
	if n > most {
		f.see("and %d others", n-most)
	}
	f.fix("have the program reset or close its QPs after an error: verbs res show qp dev %s state ERR", name)
	return f.conclude(LevelWarning, "%s in state ERR for more than %v", plural(n, "QP"), brokenTime)
}

// owner names the owner of an object.
func (m *machine) owner(o netlinkrdma.Owner) string {
	switch {
	case o.Kernel != "":
		return "the kernel's " + o.Kernel
	case o.PID == 0:
		return "a process that cannot be seen from here"
	}
	if pid, _, err := m.procs().Thread(o.PID); err == nil {
		return fmt.Sprintf("process %d (%s)", pid, m.procs().Name(pid))
	}
	return fmt.Sprintf("thread %d, which has ended", o.PID)
}

// procs is /proc.
func (m *machine) procs() proc.FS {
	sub, err := fs.Sub(m.root, "proc")
	if err != nil {
		return proc.System
	}
	return proc.New(sub)
}

// checkPinned looks for processes whose pinned memory comes near their limit.
func (m *machine) checkPinned(seen map[string]*glimpse) Finding {
	f := Finding{Code: CodePinned}
	var all []uint32
	for _, g := range seen {
		if g != nil {
			for _, tid := range g.objects.owners {
				if pid, _, err := m.procs().Thread(tid); err == nil {
					all = append(all, pid)
				}
			}
		}
	}
	sort.Slice(all, func(i, j int) bool { return all[i] < all[j] })
	n := 0
	for _, pid := range slices.Compact(all) {
		pinned, limit, ok := m.pinned(pid)
		if ok && pinned > limit/10*9 {
			n++
			f.see("process %d (%s) has pinned %s, its limit is %s", pid, m.procs().Name(pid), limitText(pinned), limitText(limit))
		}
	}
	if n == 0 {
		return Finding{}
	}
	f.Fix = memlockFixes()
	return f.conclude(LevelWarning, "%s with more than 90 %% of the memory pinned that the limit permits", choose(n == 1, "1 process", fmt.Sprintf("%d processes", n)))
}

// pinned returns how much memory a process has pinned, and its limit. It reports false if there is none, or it is not known.
func (m *machine) pinned(pid uint32) (pinned, limit uint64, ok bool) {
	dir := path.Join("/proc", strconv.FormatUint(uint64(pid), 10))
	status, err := m.fields(path.Join(dir, "status"))
	if err != nil {
		return 0, 0, false
	}
	const capIPCLock = 14
	caps, err := strconv.ParseUint(status["CapEff"], 16, 64)
	if err != nil || caps>>capIPCLock&1 != 0 {
		return 0, 0, false
	}
	kib, err := strconv.ParseUint(strings.TrimSuffix(status["VmPin"], " kB"), 10, 53)
	if err != nil {
		return 0, 0, false
	}
	limits, err := m.text(path.Join(dir, "limits"))
	if err != nil {
		return 0, 0, false
	}
	for line := range strings.Lines(limits) {
		rest, found := strings.CutPrefix(line, "Max locked memory")
		if words := strings.Fields(rest); found && len(words) > 0 {
			limit, err = strconv.ParseUint(words[0], 10, 64)
			return kib << 10, limit, err == nil // "unlimited" is no number
		}
	}
	return 0, 0, false
}
