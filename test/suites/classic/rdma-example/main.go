// Rdma-example writes into a buffer of its peer by RDMA, reads it back and compares; see announce.go of package classic.
package main

import "github.com/goverbs/goverbs/test/suites/classic"

func main() { classic.Main("rdma-example") }
