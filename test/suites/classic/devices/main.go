// Devices lists RDMA devices; see devices.go of package classic.
package main

import "github.com/goverbs/goverbs/test/suites/classic"

func main() { classic.Main("devices") }
