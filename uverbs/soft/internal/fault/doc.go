// Package fault injects faults into a software device: it loses, duplicates, reorders, delays and
// corrupts packets between the device and its network.
package fault
