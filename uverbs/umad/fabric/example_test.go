package fabric_test

import (
	"context"
	"fmt"
	"log"

	"github.com/goverbs/goverbs/uverbs/umad"
	"github.com/goverbs/goverbs/uverbs/umad/fabric"
)

// Links that are slower than both ends can be.
func ExampleDiscover() {
	port, err := umad.Open("mlx5_0", 1)
	if err != nil {
		log.Fatal(err)
	}
	defer port.Close()
	f, err := fabric.Discover(context.Background(), port, fabric.Options{})
	if err != nil {
		log.Fatal(err)
	}
	for a, b := range f.Links() {
		if _, speed := a.Could(); speed != 0 {
			fmt.Printf("%v - %v runs at %v and could run at %v\n", a, b, a.Speed(), speed)
		}
	}
	for i := range f.Problems {
		fmt.Println(&f.Problems[i])
	}
}
