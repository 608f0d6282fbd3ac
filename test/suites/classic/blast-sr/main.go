// Blast-sr sends messages in one direction as fast as they go; see blast.go of package classic.
package main

import "github.com/goverbs/goverbs/test/suites/classic"

func main() { classic.Main("blast-sr") }
