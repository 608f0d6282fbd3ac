package ib

import (
	"bytes"
	"fmt"
	"net/netip"
	"strconv"
	"strings"
)

// The texts that infiniband-diags prints are templates: {OFFSET:BITS FORM} is a field of a record, where
// OFFSET is in bytes, with ".BIT" if it begins within one. FORM is
//
//	u        decimal
//	x, X     hexadecimal with 0x, followed by the least number of digits
//	g        a GID, s a text of BITS
//	a word   one of the lists below
type template string

// expand writes a record in the form of a template. Bytes that the record does not have are 0.
func (t template) expand(record []byte) string {
	var b strings.Builder
	rest := string(t)
	for {
		text, field, ok := strings.Cut(rest, "{")
		b.WriteString(text)
		if !ok {
			return b.String()
		}
		field, rest, _ = strings.Cut(field, "}")
		at, bits, form := placeOf(field)
		b.WriteString(formatField(record, at, bits, form))
	}
}

// placeOf reads OFFSET:BITS FORM. It returns the offset in bits.
func placeOf(field string) (at, bits int, form string) {
	place, form, _ := strings.Cut(field, " ")
	offset, width, _ := strings.Cut(place, ":")
	octet, bit, _ := strings.Cut(offset, ".")
	return atoi(octet)*8 + atoi(bit), atoi(width), form
}

// atoi returns the number in a template, 0 if there is none.
func atoi(text string) int {
	n, _ := strconv.Atoi(text)
	return n
}

// formatField writes the field of a record that begins at a bit.
func formatField(record []byte, at, bits int, form string) string {
	if form == "s" || form == "g" {
		b := make([]byte, bits/8)
		copy(b, record[min(at/8, len(record)):])
		if form == "g" {
			return netip.AddrFrom16([16]byte(b)).String()
		}
		text, _, _ := bytes.Cut(b, []byte{0})
		for i, c := range text { // as rdma-core does, so that a terminal is safe
			if c < ' ' || c > '~' {
				text[i] = ' '
			}
		}
		return string(text)
	}
	v := bitsOf(record, at, bits)
	switch form[0] {
	case 'u':
		return strconv.FormatUint(v, 10)
	case 'x':
		return fmt.Sprintf("0x%0*x", atoi(form[1:]), v)
	case 'X':
		return fmt.Sprintf("0x%0*X", atoi(form[1:]), v)
	}
	return words[form](v)
}

// bitsOf returns the number in the bits [at, at+n).
func bitsOf(b []byte, at, n int) (v uint64) {
	for i := at; i < at+n; i++ {
		v <<= 1
		if i/8 < len(b) {
			v |= uint64(b[i/8] >> (7 - i%8) & 1)
		}
	}
	return v
}

// dotted makes a template of libibmad's form from lines of "LABEL OFFSET:BITS FORM". The offsets count
// from a byte of the record.
func dotted(indent string, from int, lines string) template {
	const width = 33 // of a label with its dots
	var b strings.Builder
	for _, line := range strings.Split(strings.TrimSpace(lines), "\n") {
		label, field, _ := strings.Cut(line, " ")
		if octet, rest, ok := cutNumber(field); ok {
			field = fmt.Sprintf("{%d%s}", octet+from, rest)
		}
		fmt.Fprintf(&b, "%s%s:%s%s\n", indent, label, strings.Repeat(".", max(width-len(label)-1, 0)), field)
	}
	return template(b.String())
}

// cutNumber cuts the number at the beginning of a text.
func cutNumber(text string) (n int, rest string, ok bool) {
	rest = strings.TrimLeft(text, "0123456789")
	digits := text[:len(text)-len(rest)]
	return atoi(digits), rest, digits != ""
}

// words has the forms that are lists of words, by libibmad's names of the values.
var words = map[string]func(uint64) string{
	"node":    oneOf("?(%d)?", "", "Channel Adapter", "Switch", "Router"),
	"state":   oneOf("?(%d)", "NoChange", "Down", "Initialize", "Armed", "Active"),
	"phys":    oneOf("?(%d)", "NoChange", "Sleep", "Polling", "Disabled", "PortConfigurationTraining", "LinkUp", "LinkErrorRecovery", "PhyTest"),
	"down":    oneOf("?(%d)", "NoChange", "Sleep", "Polling"),
	"mtu":     oneOf("?(%d)", "", "256", "512", "1024", "2048", "4096"),
	"vlcap":   oneOf("?(%d)", "", "VL0", "VL0-1", "VL0-3", "VL0-7", "VL0-14"),
	"opervls": oneOf("?(%d)", "No change", "VL0", "VL0-1", "VL0-3", "VL0-7", "VL0-14"),
	"width":   oneOf("undefined (%d)", "", "1X", "4X", "", "8X", "", "", "", "12X", "", "", "", "", "", "", "", "2X"),
	"widths":  widths,
	"widthsup": func(v uint64) string {
		return widths(v) + extension(v>>5 == 0 && !strings.Contains(usualWidths, fmt.Sprintf(" %d ", v)))
	},
	"speed": oneOf("undefined (%d)", "Extended speed", "2.5 Gbps", "5.0 Gbps", "", "10.0 Gbps"),
	"speeds": func(v uint64) string {
		return setOf(v, "2.5 Gbps", "5.0 Gbps", "10.0 Gbps") + extension(v < 8 && v&1 == 0)
	},
	"extspeed":  oneOf("undefined (%d)", []string{0: "No Extended Speed", 1: "14.0625 Gbps", 2: "25.78125 Gbps", 4: "53.125 Gbps", 8: "106.25 Gbps", 32: "212.5 Gbps"}...),
	"ext2":      oneOf("undefined (%d)", "No Extended Speed 2", "212.5 Gbps"),
	"ext2s":     oneOf(" undefined (%d)", "0", "212.5 Gbps"),
	"extspeeds": extSpeeds,
	"extspeedsen": func(v uint64) string {
		if v == 30 {
			return "Extended link speeds disabled"
		}
		return extSpeeds(v)
	},
	"capmask":  capabilities(capabilityNames),
	"capmask2": capabilities(capability2Names),
}

// usualWidths are the sets of widths that are not an extension, as libibmad has them.
const usualWidths = " 1 3 7 11 15 17 19 23 27 31 "

func widths(v uint64) string { return setOf(v, "1X", "4X", "8X", "12X", "2X") }

// extSpeeds lists extended speeds.
func extSpeeds(v uint64) string {
	if v == 0 {
		return "0"
	}
	return setOf(v, "14.0625 Gbps", "25.78125 Gbps", "53.125 Gbps", "106.25 Gbps")
}

// extension marks values that are not those of the first version of the specification.
func extension(is bool) string {
	if is {
		return " (IBA extension)"
	}
	return ""
}

// oneOf returns a form that writes the word of a value. Without one it writes the value as other has it.
func oneOf(other string, names ...string) func(uint64) string {
	return func(v uint64) string {
		if v < uint64(len(names)) && names[v] != "" {
			return names[v]
		}
		return fmt.Sprintf(other, v)
	}
}

// setOf writes the names of the bits of a value.
func setOf(v uint64, names ...string) string {
	var b strings.Builder
	for i, name := range names {
		if v>>i&1 != 0 {
			b.WriteString(name + " or ")
		}
	}
	if v == 0 || v>>len(names) != 0 {
		fmt.Fprintf(&b, "undefined (%d)", v)
		return b.String()
	}
	return strings.TrimSuffix(b.String(), " or ")
}

// capabilities returns a form that writes a mask, and a line for each of its bits.
func capabilities(names string) func(uint64) string {
	return func(v uint64) string {
		text := fmt.Sprintf("0x%x", v)
		for i, name := range strings.Split(names, " ") {
			if v>>i&1 != 0 && name != "-" {
				text += "\n\t\t\t\tIs" + name
			}
		}
		return text
	}
}

// capabilityNames are the bits of PortInfo.CapabilityMask, spelt as libibmad does.
const capabilityNames = "- SM NoticeSupported TrapSupported OptionalIPDSupported AutomaticMigrationSupported SLMappingSupported MKeyNVRAM " +
	"PKeyNVRAM LedInfoSupported SMdisabled SystemImageGUIDsupported PkeySwitchExternalPortTrapSupported - ExtendedSpeedsSupported CapabilityMask2Supported " +
	"CommunicatonManagementSupported SNMPTunnelingSupported ReinitSupported DeviceManagementSupported VendorClassSupported DRNoticeSupported " +
	"CapabilityMaskNoticeSupported BootManagementSupported LinkRoundTripLatencySupported ClientRegistrationSupported OtherLocalChangesNoticeSupported " +
	"LinkSpeedWidthPairsTableSupported VendorSpecificMadsTableSupported McastPkeyTrapSuppressionSupported MulticastFDBTopSupported HierarchyInfoSupported"

// capability2Names are the bits of PortInfo.CapabilityMask2.
const capability2Names = "SetNodeDescriptionSupported PortInfoExtendedSupported VirtualizationSupported SwitchPortStateTableSupported LinkWidth2xSupported " +
	"LinkSpeedHDRSupported MKeyProtectBitsExtSupported EnhancedTrap128Supported PartitionTopSupported EnhancedQoSArbiterSupported LinkSpeedNDRSupported"
