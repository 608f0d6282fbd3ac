//go:build !linux

package testenv

// prepareIWARP does nothing: only Linux has iWARP.
func prepareIWARP() error { return nil }
