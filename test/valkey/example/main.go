// Example sets a value on a server of Valkey and reads it back, with go-redis over RDMA:
//
//	valkey-server --rdma-bind 10.1.0.1 --rdma-port 6379 --protected-mode no
//	example 10.1.0.1:6379 key value
package main

import (
	"context"
	"fmt"
	"log"
	"os"

	"github.com/redis/go-redis/v9"

	"github.com/goverbs/goverbs/cm/valkey"
)

func main() {
	if len(os.Args) != 4 {
		log.Fatal("usage: example ADDRESS KEY VALUE")
	}
	if err := run(context.Background(), os.Args[1], os.Args[2], os.Args[3]); err != nil {
		log.Fatal(err)
	}
}

func run(ctx context.Context, address, key, value string) error {
	client := redis.NewClient(&redis.Options{Addr: address, Dialer: valkey.DialContext})
	defer client.Close()
	if err := client.Set(ctx, key, value, 0).Err(); err != nil {
		return err
	}
	got, err := client.Get(ctx, key).Result()
	if err != nil {
		return err
	}
	fmt.Printf("%s is %s\n", key, got)
	return nil
}
