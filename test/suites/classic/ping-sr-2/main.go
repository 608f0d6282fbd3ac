// Ping-sr-2 plays ping-pong with a goroutine for connection events; see events.go of package classic.
package main

import "github.com/goverbs/goverbs/test/suites/classic"

func main() { classic.Main("ping-sr-2") }
