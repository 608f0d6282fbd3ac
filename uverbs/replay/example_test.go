//go:build unix

package replay_test

import (
	"fmt"
	"log"
	"os"

	"github.com/goverbs/goverbs/uverbs"
	"github.com/goverbs/goverbs/uverbs/replay"
)

// A program that once registered 8192 bytes of memory now registers 4096. It was recorded by "verbs trace -o".
func Example() {
	file, err := os.Open("testdata/ours_rxe.record")
	if err != nil {
		log.Fatal(err)
	}
	defer file.Close()
	r, err := replay.New(file, replay.Options{Name: "recorded0"})
	if err != nil {
		log.Fatal(err)
	}
	defer r.Close()

	d, err := uverbs.Open("recorded0", uverbs.OpenOptions{})
	if err != nil {
		log.Fatal(err)
	}
	defer d.CloseAll()
	pd, err := d.AllocPD()
	if err != nil {
		log.Fatal(err)
	}
	buf, err := uverbs.AllocBuffer(4096, uverbs.BufferOptions{})
	if err != nil {
		log.Fatal(err)
	}
	if _, err := pd.RegMR(buf, uverbs.MROptions{Access: uverbs.AccessLocalWrite | uverbs.AccessRemoteRead}); err != nil {
		log.Fatal(err)
	}
	fmt.Println(r.Err())
	// Output: replay: register MR (line 8 of the record): ib_uverbs_reg_mr.length is 4096, the record has 8192
}
