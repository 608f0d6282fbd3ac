package efa

import (
	"fmt"
	"strings"
)

// Personality is what a card has of all that cards may differ in.
type Personality struct {
	Name     string // Name is what ParsePersonality takes.
	ID       uint16 // ID is the PCI device ID.
	Version  uint32 // Version of the interface, 0.1 or 0.2. From 0.2 on, answers of commands have a checksum.
	Caps     uint32 // Caps are the bits of device_caps.
	SubCQs   uint16 // SubCQs is the number of rings of a CQ.
	MinSQ    uint16 // MinSQ is the smallest depth of a send queue; 0 is any. It also forbids a doorbell for the whole queue.
	Batch    uint16 // Batch is how many units of 64 bytes may be written before a doorbell; 0 is any number.
	WideData bool   // WideData: work requests of 128 bytes may have 80 bytes of inline data.
	NewAHs   bool   // NewAHs: every CREATE_AH gives a number of its own, even for the same address.
	NoEQs    bool   // NoEQs: there are no event queues, so CQs cannot notify.
}

var personalities = []Personality{
	{Name: "plain", ID: 0xefa2, Version: 0x0002, Caps: capRead | capRNRRetry | capWrite | capUnsolicited | capCounters, SubCQs: 1, WideData: true},
	{Name: "first", ID: 0xefa0, Version: 0x0001, SubCQs: 2},
	{Name: "read", ID: 0xefa1, Version: 0x0001, Caps: capRead | capRNRRetry, SubCQs: 1, NoEQs: true},
	{Name: "batch", ID: 0xefa2, Version: 0x0002, Caps: capRead | capRNRRetry | capWrite, SubCQs: 1, MinSQ: 16, Batch: 4, NewAHs: true},
}

// Personalities returns the names of all personalities. The first is the usual one.
func Personalities() []string {
	var names []string
	for _, p := range personalities {
		names = append(names, p.Name)
	}
	return names
}

// ParsePersonality finds a personality by its name.
func ParsePersonality(name string) (Personality, error) {
	for _, p := range personalities {
		if p.Name == name {
			return p, nil
		}
	}
	return Personality{}, fmt.Errorf("personality %q: want one of %s", name, strings.Join(Personalities(), ", "))
}

// has reports whether the card has a capability.
func (p *Personality) has(bit uint32) bool { return p.Caps&bit != 0 }

// String describes the personality in words: its name first.
func (p *Personality) String() string {
	words := []string{p.Name}
	for _, w := range []struct {
		is   bool
		word string
	}{
		{!p.has(capRead), "no-read"}, {!p.has(capWrite), "no-write"}, {!p.has(capRNRRetry), "no-rnr-retry"},
		{!p.has(capUnsolicited), "no-unsolicited"}, {!p.has(capCounters), "no-counters"}, {p.SubCQs > 1, "sub-cqs"}, {p.MinSQ > 0, "min-sq"}, {p.Batch > 0, "batch"},
		{!p.WideData, "no-wide-data"}, {p.NewAHs, "new-ahs"}, {p.NoEQs, "no-eqs"},
	} {
		if w.is {
			words = append(words, w.word)
		}
	}
	return strings.Join(words, " ")
}
