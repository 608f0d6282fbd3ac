package s3sdk

import (
	"bytes"
	"context"
	"crypto/md5"
	"crypto/rand"
	"encoding/base64"
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"io"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	v4 "github.com/aws/aws-sdk-go-v2/aws/signer/v4"
	"github.com/aws/aws-sdk-go-v2/credentials"
	"github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/minio/minio-go/v7"
	minioCredentials "github.com/minio/minio-go/v7/pkg/credentials"

	"github.com/goverbs/goverbs/cm/s3rdma"
	"github.com/goverbs/goverbs/test/testenv"
	"github.com/goverbs/goverbs/uverbs"
)

const region = "us-east-1"

// owner has the keys that the server knows.
var owner = aws.Credentials{AccessKeyID: "access", SecretAccessKey: "secret"}

// sign signs a request whose data the signature does not cover.
func sign(r *http.Request) error {
	r.Header.Set("X-Amz-Content-Sha256", "UNSIGNED-PAYLOAD")
	return v4.NewSigner(func(o *v4.SignerOptions) { o.DisableURIPathEscaping = true }).
		SignHTTP(r.Context(), owner, r, "UNSIGNED-PAYLOAD", "s3", region, time.Now())
}

// signed lets through requests whose signature is right.
func signed(t *testing.T, next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		got := r.Header.Get("Authorization")
		_, list, _ := strings.Cut(got, "SignedHeaders=")
		list, _, _ = strings.Cut(list, ",")
		again := r.Clone(r.Context())
		again.Header, again.ContentLength = http.Header{}, 0
		for name := range strings.SplitSeq(list, ";") {
			if name == "content-length" {
				again.ContentLength = r.ContentLength
			} else if v := r.Header.Values(name); len(v) > 0 {
				again.Header[http.CanonicalHeaderKey(name)] = v
			}
		}
		at, err := time.Parse("20060102T150405Z", r.Header.Get("X-Amz-Date"))
		testenv.Must(t, err)
		err = v4.NewSigner(func(o *v4.SignerOptions) { o.DisableURIPathEscaping = true }).
			SignHTTP(r.Context(), owner, again, r.Header.Get("X-Amz-Content-Sha256"), "s3", region, at)
		if err != nil || signature(again.Header.Get("Authorization")) != signature(got) {
			t.Errorf("%s %s: the signature is %q, want %q, %v", r.Method, r.URL, got, again.Header.Get("Authorization"), err)
			w.WriteHeader(http.StatusForbidden)
			return
		}
		next.ServeHTTP(w, r)
	})
}

// signature returns the end of a header, without its form.
func signature(authorization string) string {
	_, s, _ := strings.Cut(authorization, "Signature=")
	return s
}

// store has objects in a directory, and parts of uploads.
type store struct{ dir string }

func (s *store) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	file, q := filepath.Join(s.dir, filepath.Base(r.URL.Path)), r.URL.Query()
	switch {
	case r.Method == http.MethodGet && q.Has("location"):
		io.WriteString(w, `<LocationConstraint xmlns="http://s3.amazonaws.com/doc/2006-03-01/"></LocationConstraint>`)
	case r.Method == http.MethodPost && q.Has("uploads"):
		io.WriteString(w, `<InitiateMultipartUploadResult><UploadId>1</UploadId></InitiateMultipartUploadResult>`)
	case r.Method == http.MethodPost && q.Has("uploadId"):
		var all []byte
		for part := 1; ; part++ {
			data, err := os.ReadFile(file + "." + strconv.Itoa(part))
			if err != nil {
				break
			}
			all = append(all, data...)
		}
		os.WriteFile(file, all, 0o600)
		io.WriteString(w, `<CompleteMultipartUploadResult xmlns="http://s3.amazonaws.com/doc/2006-03-01/"><Bucket>bucket</Bucket><ETag>"x"</ETag></CompleteMultipartUploadResult>`)
	case r.Method == http.MethodPut:
		if part := q.Get("partNumber"); part != "" {
			file += "." + part
		}
		data, err := io.ReadAll(r.Body)
		if err == nil && r.Header.Get("Content-Encoding") == "aws-chunked" {
			data, err = unchunk(data)
		}
		if err != nil {
			w.WriteHeader(http.StatusInternalServerError)
			return
		}
		for name, table := range map[string]*crc32.Table{"X-Amz-Checksum-Crc32": crc32.IEEETable, "X-Amz-Checksum-Crc32c": crc32.MakeTable(crc32.Castagnoli)} {
			sum := base64.StdEncoding.EncodeToString(binary.BigEndian.AppendUint32(nil, crc32.Checksum(data, table)))
			if want := r.Header.Get(name); want != "" && want != sum {
				w.WriteHeader(http.StatusBadRequest)
				io.WriteString(w, "<Error><Code>BadDigest</Code></Error>")
				return
			}
		}
		if _, err := os.Stat(file); err == nil && r.Header.Get("If-None-Match") == "*" {
			w.WriteHeader(http.StatusPreconditionFailed)
			return
		}
		os.WriteFile(file, data, 0o600)
		w.Header().Set("ETag", fmt.Sprintf(`"%x"`, md5.Sum(data)))
	default:
		data, err := os.ReadFile(file)
		if err != nil {
			w.WriteHeader(http.StatusNotFound)
			io.WriteString(w, "<Error><Code>NoSuchKey</Code><Message>there is no such key</Message></Error>")
			return
		}
		w.Header().Set("ETag", fmt.Sprintf(`"%x"`, md5.Sum(data)))
		http.ServeContent(w, r, "", time.Now(), bytes.NewReader(data))
	}
}

// unchunk takes the chunks of a body apart, each with its size and a signature before it.
func unchunk(body []byte) (data []byte, err error) {
	for {
		head, rest, _ := bytes.Cut(body, []byte("\r\n"))
		size, _, _ := strings.Cut(string(head), ";")
		n, err := strconv.ParseUint(size, 16, 24)
		if n == 0 || err != nil {
			return data, err
		}
		data, body = append(data, rest[:n]...), rest[n+2:]
	}
}

func TestMain(m *testing.M) { os.Exit(testenv.Main(m, "")) }

// rig is a server of objects, and a client's target.
type rig struct {
	url, dir string
	target   *s3rdma.Target

	mu    sync.Mutex
	moved int64 // bytes that went by RDMA
}

// newRig makes a rig, whose server moves data by RDMA, declines to, or ignores tokens.
func newRig(t *testing.T, kind string) *rig {
	t.Helper()
	testenv.Guest(t)
	testenv.Needs(t, "DC", "mlx5")
	r := &rig{dir: t.TempDir()}
	devices := testenv.TheRig().Devices
	client, err := uverbs.Open(devices[0], uverbs.OpenOptions{})
	testenv.Must(t, err)
	t.Cleanup(func() { client.Close() })
	server, err := uverbs.Open(devices[1], uverbs.OpenOptions{})
	testenv.Must(t, err)
	t.Cleanup(func() { server.Close() })
	r.target, err = s3rdma.NewTarget(client, s3rdma.TargetOptions{})
	testenv.Must(t, err)
	t.Cleanup(func() { r.target.Close() })
	networks := []netip.Prefix{netip.MustParsePrefix("0.0.0.0/0"), netip.MustParsePrefix("::/0")}
	if kind == "declines" {
		networks = []netip.Prefix{netip.MustParsePrefix("192.0.2.0/32")}
	}
	i, err := s3rdma.NewInitiator(server, s3rdma.InitiatorOptions{Networks: networks})
	testenv.Must(t, err)
	t.Cleanup(func() { i.Close() })
	var h http.Handler = &store{r.dir}
	if kind != "ignores" {
		h = i.Handler(h, s3rdma.HandlerOptions{Report: func(_ *http.Request, n int64, _ error) {
			r.mu.Lock()
			defer r.mu.Unlock()
			r.moved += n
		}})
	}
	s := httptest.NewServer(signed(t, h))
	t.Cleanup(s.Close)
	r.url = s.URL
	return r
}

// took returns how many bytes have gone by RDMA since the last call.
func (r *rig) took() (n int64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	n, r.moved = r.moved, 0
	return n
}

// client puts and gets objects with a context that offers memory.
type client interface {
	put(ctx context.Context, key string, data []byte) error
	putNew(ctx context.Context, key string, data []byte) error // with a sum of the data, if there is no such key
	get(ctx context.Context, key, byteRange string) ([]byte, error)
	upload(ctx context.Context, key string, parts [][]byte, offer func(part int) context.Context) error
}

type awsClient struct{ *s3.Client }

func (c awsClient) put(ctx context.Context, key string, data []byte) error {
	_, err := c.PutObject(ctx, &s3.PutObjectInput{Bucket: aws.String("bucket"), Key: &key, Body: bytes.NewReader(data)})
	return err
}

func (c awsClient) putNew(ctx context.Context, key string, data []byte) error {
	sum := base64.StdEncoding.EncodeToString(binary.BigEndian.AppendUint32(nil, crc32.ChecksumIEEE(data)))
	_, err := c.PutObject(ctx, &s3.PutObjectInput{Bucket: aws.String("bucket"), Key: &key, Body: bytes.NewReader(data), IfNoneMatch: aws.String("*"), ChecksumCRC32: &sum})
	return err
}

func (c awsClient) get(ctx context.Context, key, byteRange string) ([]byte, error) {
	in := &s3.GetObjectInput{Bucket: aws.String("bucket"), Key: &key}
	if byteRange != "" {
		in.Range = &byteRange
	}
	out, err := c.GetObject(ctx, in)
	if err != nil {
		return nil, err
	}
	defer out.Body.Close()
	return io.ReadAll(out.Body)
}

func (c awsClient) upload(ctx context.Context, key string, parts [][]byte, offer func(int) context.Context) error {
	up, err := c.CreateMultipartUpload(ctx, &s3.CreateMultipartUploadInput{Bucket: aws.String("bucket"), Key: &key})
	if err != nil {
		return err
	}
	for i, data := range parts {
		_, err := c.UploadPart(offer(i), &s3.UploadPartInput{Bucket: aws.String("bucket"), Key: &key, UploadId: up.UploadId, PartNumber: aws.Int32(int32(i + 1)), Body: bytes.NewReader(data)})
		if err != nil {
			return err
		}
	}
	_, err = c.CompleteMultipartUpload(ctx, &s3.CompleteMultipartUploadInput{Bucket: aws.String("bucket"), Key: &key, UploadId: up.UploadId})
	return err
}

type minioClient struct{ *minio.Core }

func (c minioClient) put(ctx context.Context, key string, data []byte) error {
	_, err := c.Client.PutObject(ctx, "bucket", key, bytes.NewReader(data), int64(len(data)), minio.PutObjectOptions{DisableMultipart: true})
	return err
}

func (c minioClient) putNew(ctx context.Context, key string, data []byte) error {
	sum := base64.StdEncoding.EncodeToString(binary.BigEndian.AppendUint32(nil, crc32.Checksum(data, crc32.MakeTable(crc32.Castagnoli))))
	o := minio.PutObjectOptions{DisableMultipart: true, UserMetadata: map[string]string{"X-Amz-Checksum-Crc32c": sum}}
	o.SetMatchETagExcept("*")
	_, err := c.Client.PutObject(ctx, "bucket", key, bytes.NewReader(data), int64(len(data)), o)
	return err
}

func (c minioClient) get(ctx context.Context, key, byteRange string) ([]byte, error) {
	var o minio.GetObjectOptions
	if byteRange != "" {
		o.Set("Range", byteRange)
	}
	body, _, _, err := c.Core.GetObject(ctx, "bucket", key, o)
	if err != nil {
		return nil, err
	}
	defer body.Close()
	return io.ReadAll(body)
}

func (c minioClient) upload(ctx context.Context, key string, parts [][]byte, offer func(int) context.Context) error {
	id, err := c.NewMultipartUpload(ctx, "bucket", key, minio.PutObjectOptions{})
	if err != nil {
		return err
	}
	var done []minio.CompletePart
	for i, data := range parts {
		part, err := c.PutObjectPart(offer(i), "bucket", key, id, i+1, bytes.NewReader(data), int64(len(data)), minio.PutObjectPartOptions{})
		if err != nil {
			return err
		}
		done = append(done, minio.CompletePart{PartNumber: i + 1, ETag: part.ETag})
	}
	_, err = c.CompleteMultipartUpload(ctx, "bucket", key, id, done, minio.PutObjectOptions{})
	return err
}

// clients are the clients of a rig.
func clients(t *testing.T, r *rig) map[string]client {
	t.Helper()
	transport := &s3rdma.Transport{Sign: sign}
	m, err := minio.NewCore(strings.TrimPrefix(r.url, "http://"), &minio.Options{Creds: minioCredentials.NewStaticV4(owner.AccessKeyID, owner.SecretAccessKey, ""), Transport: transport, Region: region})
	testenv.Must(t, err)
	return map[string]client{
		"aws": awsClient{s3.New(s3.Options{
			BaseEndpoint: &r.url, Region: region, UsePathStyle: true, HTTPClient: &http.Client{Transport: transport}, RetryMaxAttempts: 1,
			Credentials: credentials.NewStaticCredentialsProvider(owner.AccessKeyID, owner.SecretAccessKey, ""),
		})},
		"minio": minioClient{m},
	}
}

// TestClients puts and gets an object, a range of it and one in parts, with each client: by RDMA,
// or by the body if the server declines or ignores tokens, and without an offer.
func TestClients(t *testing.T) {
	for _, kind := range []string{"moves", "declines", "ignores"} {
		r := newRig(t, kind)
		for name, c := range clients(t, r) {
			t.Run(name+"/"+kind, func(t *testing.T) {
				const size = 300_000
				g, err := r.target.Alloc(size, uverbs.BufferOptions{})
				testenv.Must(t, err)
				defer g.Close()
				by := func(want int64) {
					t.Helper()
					if kind != "moves" {
						want = 0
					}
					if n := r.took(); n != want {
						t.Errorf("%d bytes went by RDMA, want %d", n, want)
					}
				}
				rand.Read(g.Bytes())
				want := bytes.Clone(g.Bytes())
				testenv.Must(t, c.put(s3rdma.WithRegion(t.Context(), g, size), "object", want))
				by(size)
				if got, err := os.ReadFile(filepath.Join(r.dir, "object")); err != nil || !bytes.Equal(got, want) {
					t.Errorf("the server has %d bytes, %v", len(got), err)
				}
				testenv.Must(t, c.putNew(s3rdma.WithRegion(t.Context(), g, size), "new-"+name, want))
				by(size)
				if got, err := os.ReadFile(filepath.Join(r.dir, "new-"+name)); err != nil || !bytes.Equal(got, want) {
					t.Errorf("the server has %d bytes of the new object, %v", len(got), err)
				}
				clear(g.Bytes())
				got, err := c.get(s3rdma.WithRegion(t.Context(), g, size), "object", "")
				if err != nil || !bytes.Equal(got, want) || kind == "moves" && !bytes.Equal(g.Bytes(), want) {
					t.Errorf("get: %d bytes, %v, or other data", len(got), err)
				}
				by(size)
				got, err = c.get(s3rdma.WithRegion(t.Context(), g, size), "object", "bytes=100-199")
				if err != nil || !bytes.Equal(got, want[100:200]) {
					t.Errorf("get of a range: %d bytes, %v, or other data", len(got), err)
				}
				by(100)
				got, err = c.get(t.Context(), "object", "")
				if err != nil || !bytes.Equal(got, want) {
					t.Errorf("get without an offer: %d bytes, %v, or other data", len(got), err)
				}
				by(0)
				if got, err := c.get(s3rdma.WithRegion(t.Context(), g, size), "none", ""); err == nil || len(got) > 0 || !strings.Contains(err.Error(), "NoSuchKey") && minio.ToErrorResponse(err).Code != "NoSuchKey" {
					t.Errorf("get of an object that does not exist: %d bytes, %v", len(got), err)
				}
				copy(g.Bytes(), want)
				parts := [][]byte{want[:200_000], want[:77]}
				testenv.Must(t, c.upload(t.Context(), "parts", parts, func(part int) context.Context {
					return s3rdma.WithRegion(t.Context(), g, len(parts[part]))
				}))
				by(200_077)
				if got, err := os.ReadFile(filepath.Join(r.dir, "parts")); err != nil || !bytes.Equal(got, bytes.Join(parts, nil)) {
					t.Errorf("the server has %d bytes of the parts, %v", len(got), err)
				}
			})
		}
	}
}
