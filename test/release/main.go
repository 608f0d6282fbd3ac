// Release makes what a release has besides the programs, and checks that it keeps its promises.
package main

import (
	"fmt"
	"os"
)

const usage = `usage:
  release api                    compare the exported API with that of the last tag
  release man VERBS DIRECTORY    write the man pages of a verbs program, from its help, and its completions
  release image DIRECTORY FILE   write a container of DIRECTORY/amd64/verbs and DIRECTORY/arm64/verbs as an OCI archive
`

func main() {
	var err error
	switch args := os.Args[1:]; {
	case len(args) == 1 && args[0] == "api":
		err = api(root, os.Stdout)
	case len(args) == 3 && args[0] == "man":
		err = man(args[1], args[2])
	case len(args) == 3 && args[0] == "image":
		err = image(args[1], args[2])
	default:
		fmt.Fprint(os.Stderr, usage)
		os.Exit(2)
	}
	if err != nil {
		fmt.Fprintf(os.Stderr, "release: %v\n", err)
		os.Exit(1)
	}
}

// root is the root of the checkout, from the folder of this module, where go run -C runs it.
const root = "../.."
