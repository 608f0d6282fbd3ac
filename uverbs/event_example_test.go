package uverbs_test

import (
	"context"
	"errors"
	"log"
	"os"

	"github.com/goverbs/goverbs/uverbs"
)

// A goroutine logs what happens to the device until it is closed.
func ExampleDevice_NextEvent() {
	dev, err := uverbs.OpenFirst()
	if err != nil {
		log.Fatal(err)
	}
	defer dev.Close()
	go func() {
		for {
			ev, err := dev.NextEvent(context.Background())
			if errors.Is(err, os.ErrClosed) {
				return
			}
			if err != nil {
				log.Fatal(err)
			}
			switch ev.Type {
			case uverbs.EventPortErr, uverbs.EventPortActive:
				log.Printf("port %d has changed", ev.Port)
			case uverbs.EventCQErr:
				log.Printf("a CQ for %d completions was too small", ev.CQ.Size())
			default:
				log.Print(ev)
			}
		}
	}()
}
