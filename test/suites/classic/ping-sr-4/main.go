// Ping-sr-4 plays ping-pong with one goroutine for events and completions; see loop.go of package classic.
package main

import "github.com/goverbs/goverbs/test/suites/classic"

func main() { classic.Main("ping-sr-4") }
