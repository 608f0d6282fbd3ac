// Package probe probes the paths between hosts all the time.
package probe
