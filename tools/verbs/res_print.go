package main

import (
	"cmp"
	"fmt"
	"io"
	"reflect"
	"strings"
	"text/tabwriter"
)

// details returns what the tables leave out of a row: the fields that are marked with ",more", and the
// driver's attributes.
func details(row reflect.Value) string {
	var pairs []string
	owner := field(row, "Kernel").String()
	fields(row, func(key string, more, empty bool, v reflect.Value) {
		// A kernel's object has no context, and an SRQ may have no CQ.
		if !more || v.IsZero() && (empty || owner != "" || key == "cqn") {
			return
		}
		if v.Kind() == reflect.Pointer {
			pairs = append(pairs, fmt.Sprintf("%s 0x%x", key, v.Elem().Uint()))
			return
		}
		pairs = append(pairs, fmt.Sprintf("%s %v", key, v))
	})
	text := strings.Join(pairs, ", ")
	if f := field(row, "text"); f.IsValid() {
		text += f.String()
	}
	return cmp.Or(strings.TrimPrefix(text, ", "), "-")
}

// printRaw writes the dumps, 32 bytes in a line.
func (r *resReport) printRaw(w io.Writer) {
	r.lists(func(kind string, list reflect.Value) {
		for i := range list.Len() {
			f := field(list.Index(i), "Raw")
			if !f.IsValid() || f.Len() == 0 {
				continue
			}
			raw := f.String()
			fmt.Fprintf(w, "\n  raw %s %d, %d bytes\n", strings.ToUpper(kind), list.Index(i).Field(0).Uint(), len(raw)/2)
			for at := 0; at < len(raw); at += 64 {
				fmt.Fprintf(w, "    %04x  %s\n", at/2, raw[at:min(at+64, len(raw))])
			}
		}
	})
}

// String lists the numbers.
func (c resCounts) String() string {
	return fmt.Sprintf("%d contexts, %d PDs, %d MRs, %d CQs, %d SRQs, %d QPs, %d CM IDs", c.Contexts, c.PDs, c.MRs, c.CQs, c.SRQs, c.QPs, c.CMIDs)
}

// print writes a table for each kind of object, with details on request, and the dumps.
func (r resReport) print(w io.Writer, withDetails bool) error {
	fmt.Fprintf(w, "device: %s\n  %s\n", r.Device, r.Counts)
	if r.Limits != nil {
		fmt.Fprintf(w, "  at most %s (0: not known)\n", *r.Limits)
	}
	t := tabwriter.NewWriter(w, 0, 8, 2, ' ', 0)
	table := func(list any, head string, line func(i int) []any) {
		rows := reflect.ValueOf(list)
		if rows.Len() == 0 {
			return
		}
		head += "\towner"
		if withDetails {
			head += "\tdetails"
		}
		fmt.Fprintf(t, "\n  %s\n", head)
		for i := range rows.Len() {
			var cells []string
			for _, v := range line(i) {
				cells = append(cells, fmt.Sprint(v))
			}
			if withDetails {
				cells = append(cells, details(rows.Index(i)))
			}
			fmt.Fprintf(t, "  %s\n", strings.Join(cells, "\t"))
		}
		// The columns of different tables are not aligned.
		t.Flush()
	}
	key := func(k *uint32) string {
		if k == nil {
			return "-"
		}
		return fmt.Sprintf("0x%x", *k)
	}
	table(r.Contexts, "context", func(i int) []any { v := r.Contexts[i]; return []any{v.ID, v.ownerRow} })
	table(r.PDs, "PD\tusers", func(i int) []any { v := r.PDs[i]; return []any{v.ID, v.Users, v.ownerRow} })
	table(r.MRs, "MR\tbytes\tlkey\trkey\tPD", func(i int) []any {
		v := r.MRs[i]
		return []any{v.ID, v.Length, key(v.LKey), key(v.RKey), v.PD, v.ownerRow}
	})
	table(r.CQs, "CQ\tcapacity\tusers", func(i int) []any { v := r.CQs[i]; return []any{v.ID, v.CQE, v.Users, v.ownerRow} })
	table(r.SRQs, "SRQ\ttype\tPD\tQPs", func(i int) []any { v := r.SRQs[i]; return []any{v.ID, v.Type, v.PD, v.QPs, v.ownerRow} })
	table(r.QPs, "QP\ttype\tstate\tport\tpeer\trq PSN\tsq PSN\tPD", func(i int) []any {
		v := r.QPs[i]
		return []any{v.Num, v.Type, v.State, v.Port, v.RemoteNum, v.RQPSN, v.SQPSN, v.PD, v.ownerRow}
	})
	table(r.CMIDs, "CM ID\tstate\tspace\tport\tfrom\tto\tQP", func(i int) []any {
		v := r.CMIDs[i]
		return []any{v.ID, v.State, v.PortSpace, v.Port, v.Local, v.Remote, v.QPNum, v.ownerRow}
	})
	r.printRaw(t)
	for _, m := range r.Missing {
		fmt.Fprintf(t, "\n  not shown: %s\n", m)
	}
	return t.Flush()
}
