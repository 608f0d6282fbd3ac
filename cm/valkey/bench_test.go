package valkey

import (
	"fmt"
	"io"
	"testing"
)

// BenchmarkRoundTrip sends messages to and fro.
func BenchmarkRoundTrip(b *testing.B) {
	for _, size := range []int{16, 4096, 1 << 20} {
		b.Run(fmt.Sprint(size), func(b *testing.B) {
			client, server, err := connect(newListener(b, Options{}), Options{})
			must(b, err)
			echoed := make(chan error, 1)
			go func() {
				buf := make([]byte, size)
				for {
					if _, err := io.ReadFull(server, buf); err != nil {
						echoed <- err
						return
					}
					if _, err := server.Write(buf); err != nil {
						echoed <- err
						return
					}
				}
			}()
			buf := make([]byte, size)
			b.SetBytes(2 * int64(size))
			b.ReportAllocs()
			for b.Loop() {
				_, err := client.Write(buf)
				must(b, err)
				_, err = io.ReadFull(client, buf)
				must(b, err)
			}
			must(b, client.Close())
			<-echoed
			must(b, server.Close())
		})
	}
}
