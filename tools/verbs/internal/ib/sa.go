package ib

import (
	"context"
	"errors"
	"fmt"
	"io"
	"reflect"
	"strconv"
	"strings"
	"time"

	"github.com/goverbs/goverbs/tools/verbs/internal/command"
	"github.com/goverbs/goverbs/tools/verbs/internal/peertext"
	"github.com/goverbs/goverbs/uverbs/umad"
	"github.com/goverbs/goverbs/uverbs/umad/mad"
	"github.com/goverbs/goverbs/uverbs/umad/sa"
)

// compatFlag defines --compat.
func compatFlag(cmd *command.Command, compat *bool, program string) {
	cmd.Flags().BoolVar(compat, "compat", false, "print what "+program+" of infiniband-diags prints")
}

// newSA makes the command that asks the subnet administrator.
func newSA(s *System) *command.Command {
	var asJSON, compat bool
	var key string
	cmd := &command.Command{
		Use:   "sa [flags] RECORD [KEY=VALUE...]",
		Short: "Ask the subnet administrator for nodes, paths, groups and more",
		Example: `  verbs ib sa node node_type=switch
  verbs ib sa path slid=1 dlid=7
  verbs ib sa group mlid=0xc000 --sm-key 1
  verbs ib sa port endport_lid=7 --json | jq '.[].port_state'
  verbs ib sa path --compat         # as saquery PR`,
	}
	var b strings.Builder
	b.WriteString("RECORD is one of:\n\n")
	for _, k := range kinds {
		fmt.Fprintf(&b, "  %-8s %s\n", k.name, k.about)
	}
	b.WriteString(`
KEY=VALUE asks for the records that have this value; the keys are the names in the JSON. It needs no
QP0, so it works on virtual functions. The subnet manager is the one that the port knows. --timeout
limits the time for a whole answer.`)
	cmd.Long = b.String()
	o := newOptions(s, cmd)
	o.timeout = 5 * time.Second
	command.DefaultIs(cmd.Flags(), "timeout", "5s")
	command.JSONFlag(cmd, &asJSON)
	compatFlag(cmd, &compat, "saquery RECORD")
	cmd.Flags().StringVar(&key, "sm-key", "", "SM_Key `NUMBER`, with which the subnet administrator trusts the request")
	cmd.Args = func(_ *command.Command, args []string) error {
		_, _, _, err := parseQuery(args)
		return err
	}
	cmd.Complete = completeSA
	cmd.Run = func(cmd *command.Command, args []string) error {
		k, like, mask, err := parseQuery(args)
		if err != nil {
			return err
		}
		answer, records, err := o.query(cmd.Context(), key, k, like, mask)
		if err != nil {
			return err
		}
		switch {
		case asJSON:
			all := []object{}
			for _, r := range records {
				all = append(all, objectOf(r))
			}
			return command.PrintJSON(cmd.Out(), all)
		case compat:
			return printCompat(cmd.Out(), k, answer, len(records))
		}
		return printRecords(cmd.Out(), k, records)
	}
	return cmd
}

// parseQuery reads the arguments: a kind, a record with the values, and which fields they are.
func parseQuery(args []string) (*kind, mad.Attribute, mad.Mask, error) {
	var names []string
	for _, k := range kinds {
		names = append(names, k.name)
		if len(args) == 0 || args[0] != k.name {
			continue
		}
		like := reflect.New(reflect.TypeOf(k.zero).Elem()).Interface().(mad.Attribute)
		var mask mad.Mask
		for _, arg := range args[1:] {
			key, value, ok := strings.Cut(arg, "=")
			bit, known := k.filterBits()[key]
			if !ok || !known {
				allowed := "none"
				if k.filters != "" {
					allowed = "KEY=VALUE with a KEY of " + strings.Join(k.filterKeys(), ", ")
				}
				return nil, nil, 0, command.Usagef("the condition for %s is %s, allowed: %s", k.name, peertext.Quote(arg), allowed)
			}
			if err := setField(like, key, value); err != nil {
				return nil, nil, 0, command.Usagef("%w", err)
			}
			mask |= 1 << bit
		}
		return k, like, mask, nil
	}
	given := "missing"
	if len(args) > 0 {
		given = peertext.Quote(args[0])
	}
	return nil, nil, 0, command.Usagef("RECORD is %s, allowed: %s", given, strings.Join(names, ", "))
}

// filterBits returns the components of the mask by key.
func (k *kind) filterBits() map[string]int {
	bits := map[string]int{}
	for _, f := range strings.Fields(k.filters) {
		key, bit, _ := strings.Cut(f, ":")
		bits[key] = atoi(bit)
	}
	return bits
}

// filterKeys returns the keys of conditions.
func (k *kind) filterKeys() (keys []string) {
	for _, f := range strings.Fields(k.filters) {
		key, _, _ := strings.Cut(f, ":")
		keys = append(keys, key)
	}
	return keys
}

// completeSA completes kinds and keys.
func completeSA(args []string, _ string) (all []command.Completion) {
	for _, k := range kinds {
		if len(args) == 0 {
			all = append(all, command.Completion{Text: k.name, About: k.about})
		} else if args[0] == k.name {
			for _, key := range k.filterKeys() {
				all = append(all, command.Completion{Text: key + "="})
			}
		}
	}
	return all
}

// query asks for records. The answer is nil if there are none.
func (o *options) query(ctx context.Context, key string, k *kind, like mad.Attribute, mask mad.Mask) (*mad.Packet, []mad.Attribute, error) {
	smKey, err := strconv.ParseUint(key, 0, 64)
	if key != "" && err != nil {
		return nil, nil, command.Usagef("--sm-key is %s, allowed: a number of 64 bits", peertext.Quote(key))
	}
	port, err := o.open()
	if err != nil {
		return nil, nil, err
	}
	defer port.Close()
	client, err := o.client(port, smKey)
	if err != nil {
		return nil, nil, err
	}
	defer client.Close()
	method := mad.MethodGetTable
	if like.ID() == mad.AttrClassPortInfo {
		method = mad.MethodGet
	}
	answer, err := client.Do(ctx, method, like, mask)
	var status *mad.StatusError
	if errors.As(err, &status) && status.Status == mad.StatusNoRecords {
		return nil, nil, nil
	}
	if err != nil {
		return nil, nil, err
	}
	records, err := mad.Records(answer, k.zero)
	return answer, records, err
}

// client returns a client of the subnet administrator.
func (o *options) client(port *umad.Port, key uint64) (*sa.Client, error) {
	return sa.NewClient(port, sa.Options{SMKey: key, Timeout: o.timeout, Tries: o.tries})
}

// printCompat prints n records as saquery does.
func printCompat(w io.Writer, k *kind, answer *mad.Packet, n int) error {
	for i := range n {
		if _, err := io.WriteString(w, k.compat(answer.Data[i*int(answer.SA.AttributeOffset)*8:])); err != nil {
			return err
		}
	}
	return nil
}

// printRecords prints records as a table.
func printRecords(w io.Writer, k *kind, records []mad.Attribute) error {
	columns := strings.Fields(k.columns)
	t := command.Table(w, strings.Join(columns, "\t"))
	for _, r := range records {
		o := objectOf(r)
		for i, key := range columns {
			text, ok := block(r, key)
			if !ok {
				text = o.text(key)
			}
			if text = printable(text); i > 0 {
				text = "\t" + text
			}
			io.WriteString(t, text)
		}
		fmt.Fprintln(t)
	}
	return t.Flush()
}

// printable returns a text, or the text in quotes if it would not print as it is.
func printable(text string) string {
	if q := peertext.Quote(text); q != `"`+text+`"` {
		return q
	}
	return text
}

// listed joins the texts of n entries of a block, without those that are empty.
func listed(n int, text func(i int) string) string {
	var all []string
	for i := range n {
		if t := text(i); t != "" {
			all = append(all, t)
		}
	}
	return strings.Join(all, " ")
}

// block writes what a column of a record has as a table of its own.
func block(r mad.Attribute, key string) (text string, ok bool) {
	switch x := r.(type) {
	case *mad.LinearForwardingTableRecord: // the LIDs that have a route, with their ports
		return listed(len(x.LinearForwardingTable.Port), func(i int) string {
			if port := x.LinearForwardingTable.Port[i]; port != 255 {
				return fmt.Sprintf("%d>%d", int(x.BlockNum)*64+i, port)
			}
			return ""
		}), key == "ports"
	case *mad.MulticastForwardingTableRecord: // the MLIDs that have ports, with the masks
		return listed(len(x.MulticastForwardingTable.PortMask), func(i int) string {
			if mask := x.MulticastForwardingTable.PortMask[i]; mask != 0 {
				return fmt.Sprintf("%#x>%#x", 0xc000+int(x.BlockNum)*32+i, mask)
			}
			return ""
		}), key == "port_masks"
	case *mad.SLtoVLTableRecord: // each service level with its virtual lane
		return listed(len(x.SLtoVLTable.VL), func(i int) string { return fmt.Sprintf("%d:%d", i, x.SLtoVLTable.VL[i]) }), key == "vls"
	case *mad.VLArbitrationTableRecord: // the entries that have a weight, as the virtual lane and the weight
		return listed(len(x.VLArbitrationTable.Entry), func(i int) string {
			if e := x.VLArbitrationTable.Entry[i]; e.Weight != 0 {
				return fmt.Sprintf("%d:%d", e.VL, e.Weight)
			}
			return ""
		}), key == "entries"
	}
	return "", false
}
