// Open opens a device, or none if its name is empty, says so with the nanoseconds that this took, and ends.
// Package bench times it beside a C program that does the same with rdma-core.
package main

import (
	"fmt"
	"os"
	"time"

	"github.com/goverbs/goverbs/uverbs"
)

func main() {
	begin := time.Now()
	if len(os.Args) != 2 {
		fmt.Fprintf(os.Stderr, "usage: %s DEVICE\n", os.Args[0])
		os.Exit(2)
	}
	if name := os.Args[1]; name != "" {
		if _, err := uverbs.Open(name, uverbs.OpenOptions{}); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
	}
	if _, err := fmt.Printf("ready %d\n", time.Since(begin).Nanoseconds()); err != nil {
		os.Exit(1)
	}
}
