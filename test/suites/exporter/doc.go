// Package exporter holds the tests of "verbs exporter" with Prometheus itself, which scrapes it in a VM. The suite
// exporter of test/run boots it.
package exporter
