// Ping-sr-0 plays ping-pong by SEND and RECV, and waits by polling; see pingpong.go of package classic.
package main

import "github.com/goverbs/goverbs/test/suites/classic"

func main() { classic.Main("ping-sr-0") }
