// Ping-sr-1 plays ping-pong on the terms that the client tells in its request; see private.go of package classic.
package main

import "github.com/goverbs/goverbs/test/suites/classic"

func main() { classic.Main("ping-sr-1") }
