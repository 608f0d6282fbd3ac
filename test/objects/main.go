// Objects serves the files of a directory as objects of S3 whose data goes by RDMA, and gets and
// puts them. It needs devices with DC (ConnectX).
//
//	objects serve [-device NAME] [-listen :7070] [-networks 192.0.2.0/24] DIR
//	objects put [-device NAME] http://HOST:7070 BUCKET/KEY FILE
//	objects get [-device NAME] http://HOST:7070 BUCKET/KEY FILE
//	objects try [-device NAME]
//
// The last one does all of that in one process, with an object of 64 MiB. There is no signature: it
// is an example, not a store for others.
package main

import (
	"bytes"
	"cmp"
	"context"
	"crypto/md5"
	"errors"
	"flag"
	"fmt"
	"io"
	"log"
	"math/rand/v2"
	"net"
	"net/http"
	"net/netip"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/goverbs/goverbs/cm/s3rdma"
	"github.com/goverbs/goverbs/uverbs"
)

const usage = `Objects serves a directory as objects of S3 whose data goes by RDMA, and gets and puts them.

usage:
  objects serve [flags] DIR
  objects put   [flags] URL BUCKET/KEY FILE
  objects get   [flags] URL BUCKET/KEY FILE
  objects try   [flags]

examples:
  objects serve -listen :7070 -networks 192.0.2.0/24 /srv/objects
  objects put http://192.0.2.1:7070 bucket/key file
  objects try

flags:
`

var (
	device   = flag.String("device", "", "name of the RDMA device; by default the first one")
	listen   = flag.String("listen", ":7070", "address that serve listens on")
	networks []netip.Prefix
)

func init() {
	flag.Func("networks", "networks of the clients' RDMA addresses, separated by commas; by default the address of each request", func(text string) error {
		for _, s := range strings.Split(text, ",") {
			p, err := netip.ParsePrefix(s)
			if err != nil {
				return fmt.Errorf("%q is no network, want one such as 192.0.2.0/24", s)
			}
			networks = append(networks, p)
		}
		return nil
	})
}

func main() {
	log.SetFlags(0)
	flag.Usage = func() {
		fmt.Fprint(flag.CommandLine.Output(), usage)
		flag.PrintDefaults()
	}
	flag.CommandLine.Init("objects", flag.ExitOnError)
	if len(os.Args) < 2 {
		log.Fatal(usage)
	}
	command := os.Args[1]
	if slices.Contains([]string{"-h", "-help", "--help", "help"}, command) {
		flag.CommandLine.SetOutput(os.Stdout)
		flag.Usage()
		return
	}
	flag.CommandLine.Parse(os.Args[2:])
	if err := run(context.Background(), command, flag.Args()); err != nil {
		log.Fatal("objects: ", err)
	}
}

// run runs a command.
func run(ctx context.Context, command string, args []string) error {
	want, ok := map[string]int{"serve": 1, "put": 3, "get": 3, "try": 0}[command]
	if !ok || len(args) != want {
		return fmt.Errorf("%s with %d arguments, want serve with 1, put or get with 3, or try with none", command, len(args))
	}
	dev, err := open(*device)
	if err != nil {
		return err
	}
	defer dev.Close()
	switch command {
	case "serve":
		l, err := net.Listen("tcp", *listen)
		if err != nil {
			return err
		}
		return serve(dev, l, args[0])
	case "try":
		return try(ctx, dev)
	}
	return move(ctx, dev, command, args[0], args[1], args[2])
}

// open opens a device.
func open(name string) (*uverbs.Device, error) {
	if name == "" {
		return uverbs.OpenFirst()
	}
	return uverbs.Open(name, uverbs.OpenOptions{})
}

// serve serves a directory, until the listener is closed.
func serve(dev *uverbs.Device, l net.Listener, dir string) error {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return err
	}
	defer root.Close()
	i, err := s3rdma.NewInitiator(dev, s3rdma.InitiatorOptions{Networks: networks})
	if err != nil {
		return err
	}
	defer i.Close()
	log.Printf("%s is served at http://%s", dir, l.Addr())
	return http.Serve(l, i.Handler(&store{root}, s3rdma.HandlerOptions{Report: func(r *http.Request, n int64, err error) {
		log.Printf("%s %s: %d bytes by RDMA; error: %v", r.Method, r.URL.Path, n, err)
	}}))
}

// store has objects in files. It does not know of RDMA.
type store struct{ *os.Root }

func (s *store) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	name := filepath.FromSlash(strings.TrimPrefix(path.Clean(r.URL.Path), "/"))
	var err error
	switch r.Method {
	case http.MethodGet, http.MethodHead:
		err = s.get(w, r, name)
	case http.MethodPut:
		err = s.put(w, r, name)
	default:
		w.WriteHeader(http.StatusMethodNotAllowed)
	}
	switch {
	case err == nil:
	case errors.Is(err, os.ErrNotExist):
		http.Error(w, "<Error><Code>NoSuchKey</Code></Error>", http.StatusNotFound)
	default:
		log.Printf("%s %s: %v", r.Method, name, err)
		http.Error(w, "<Error><Code>InternalError</Code></Error>", http.StatusInternalServerError)
	}
}

// get answers with a file.
func (s *store) get(w http.ResponseWriter, r *http.Request, name string) error {
	f, err := s.Open(name)
	if err != nil {
		return err
	}
	defer f.Close()
	fi, err := f.Stat()
	if err != nil {
		return err
	}
	w.Header().Set("ETag", etag(fi))
	http.ServeContent(w, r, "", fi.ModTime(), f)
	return nil
}

// put stores a file once all of it is there.
func (s *store) put(w http.ResponseWriter, r *http.Request, name string) error {
	if err := s.MkdirAll(filepath.Dir(name), 0o777); err != nil {
		return err
	}
	part := fmt.Sprintf("%s.%x.part", name, rand.Uint64())
	f, err := s.Create(part)
	if err != nil {
		return err
	}
	defer s.Remove(part) // fails once it has its name
	_, err = io.Copy(f, r.Body)
	fi, err2 := f.Stat()
	if err := cmp.Or(err, err2, f.Close()); err != nil {
		return err
	}
	if err := s.Rename(part, name); err != nil {
		return err
	}
	w.Header().Set("ETag", etag(fi))
	return nil
}

// etag returns a name of what a file has now.
func etag(fi os.FileInfo) string { return fmt.Sprintf(`"%x-%x"`, fi.ModTime().UnixNano(), fi.Size()) }

// move gets or puts an object.
func move(ctx context.Context, dev *uverbs.Device, command, url, object, file string) error {
	target, err := s3rdma.NewTarget(dev, s3rdma.TargetOptions{})
	if err != nil {
		return err
	}
	defer target.Close()
	client := &s3rdma.Client{Endpoint: url}
	var data []byte
	var size int64
	if command == "put" {
		data, err = os.ReadFile(file)
		size = int64(len(data))
	} else {
		size, _, err = client.Head(ctx, object)
	}
	if err != nil {
		return err
	}
	region, err := target.Alloc(int(max(size, 1)), uverbs.BufferOptions{})
	if err != nil {
		return err
	}
	defer region.Close()
	begin := time.Now()
	var res s3rdma.Result
	if command == "put" {
		res, err = client.Put(ctx, object, region, copy(region.Bytes(), data), s3rdma.PutOptions{})
	} else if res, err = client.Get(ctx, object, region, s3rdma.GetOptions{}); err == nil {
		err = os.WriteFile(file, region.Bytes()[:res.N], 0o666)
	}
	if err != nil {
		return err
	}
	way := "by the body"
	if res.RDMA {
		way = "by RDMA"
	}
	log.Printf("%s %s: %d bytes %s in %v", command, object, res.N, way, time.Since(begin).Round(time.Microsecond))
	return nil
}

// try serves a directory, and puts and gets an object.
func try(ctx context.Context, dev *uverbs.Device) error {
	dir, err := os.MkdirTemp("", "objects")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	networks = []netip.Prefix{netip.MustParsePrefix("0.0.0.0/0"), netip.MustParsePrefix("::/0")} // the device has another address than the connection
	ended := make(chan error, 1)
	go func() { ended <- serve(dev, l, dir) }()
	defer func() {
		l.Close()
		<-ended
	}()
	data := make([]byte, 64<<20)
	for i := range data {
		data[i] = byte(rand.Uint32())
	}
	from, to := filepath.Join(dir, "from"), filepath.Join(dir, "to")
	if err := os.WriteFile(from, data, 0o600); err != nil {
		return err
	}
	url := "http://" + l.Addr().String()
	if err := move(ctx, dev, "put", url, "bucket/object", from); err != nil {
		return err
	}
	if err := move(ctx, dev, "get", url, "bucket/object", to); err != nil {
		return err
	}
	got, err := os.ReadFile(to)
	if err != nil {
		return err
	}
	if !bytes.Equal(got, data) {
		return errors.New("the object that came back is another one")
	}
	log.Printf("the object came back as it was: MD5 %x", md5.Sum(got))
	return nil
}
