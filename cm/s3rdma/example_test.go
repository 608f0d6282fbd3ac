package s3rdma_test

import (
	"context"
	"fmt"
	"io"
	"log"
	"net/http"

	"github.com/goverbs/goverbs/cm/s3rdma"
	"github.com/goverbs/goverbs/uverbs"
)

// A client that gets an object of at most 64 MiB. A store that wants signatures needs
// Client.Sign, too.
func ExampleClient() {
	dev, err := uverbs.OpenFirst()
	if err != nil {
		log.Fatal(err)
	}
	defer dev.Close()
	target, err := s3rdma.NewTarget(dev, s3rdma.TargetOptions{})
	if err != nil {
		log.Fatal(err)
	}
	defer target.Close()
	region, err := target.Alloc(64<<20, uverbs.BufferOptions{})
	if err != nil {
		log.Fatal(err)
	}
	defer region.Close()
	client := &s3rdma.Client{Endpoint: "http://192.0.2.1:7070"}
	res, err := client.Get(context.Background(), "bucket/key", region, s3rdma.GetOptions{Checksum: true})
	if err != nil {
		log.Fatal(err)
	}
	fmt.Printf("%d bytes, by RDMA: %v, compared with a sum: %v\n", res.N, res.RDMA, res.Checked)
	data := region.Bytes()[:res.N]
	fmt.Println(http.DetectContentType(data))
}

// A server whose handler does not know of RDMA.
func ExampleInitiator_Handler() {
	dev, err := uverbs.OpenFirst()
	if err != nil {
		log.Fatal(err)
	}
	defer dev.Close()
	initiator, err := s3rdma.NewInitiator(dev, s3rdma.InitiatorOptions{})
	if err != nil {
		log.Fatal(err)
	}
	defer initiator.Close()
	objects := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.Method {
		case http.MethodGet:
			io.WriteString(w, "the object")
		case http.MethodPut: // store nothing unless all of the body was read
			if _, err := io.Copy(io.Discard, r.Body); err != nil {
				http.Error(w, "the body has failed", http.StatusBadRequest)
			}
		}
	})
	log.Fatal(http.ListenAndServe(":7070", initiator.Handler(objects, s3rdma.HandlerOptions{})))
}
