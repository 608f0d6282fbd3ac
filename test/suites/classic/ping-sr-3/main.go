// Ping-sr-3 plays ping-pong and sleeps until a completion; see sleep.go of package classic.
package main

import "github.com/goverbs/goverbs/test/suites/classic"

func main() { classic.Main("ping-sr-3") }
