package s3rdma

import (
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/goverbs/goverbs/test/testenv"
)

// serveOffers serves a directory, and counts the bytes that go by RDMA.
func serveOffers(t *testing.T, r *rig) (url, dir string, moved *int64) {
	t.Helper()
	moved = new(int64)
	c, dir := serveStore(t, func(h http.Handler) http.Handler {
		return r.initiator.Handler(h, HandlerOptions{Report: func(_ *http.Request, n int64, _ error) { *moved += n }})
	})
	return c.Endpoint, dir, moved
}

// TestTransport sends requests with a context for one: only the first one and its repetitions are
// by RDMA.
func TestTransport(t *testing.T) {
	r := newRig(t, InitiatorOptions{Networks: everywhere})
	g := r.region(t, 8192)
	fill(g.Bytes(), 1)
	data := string(g.Bytes())
	url, dir, moved := serveOffers(t, r)
	type request struct {
		method, path string
		header       http.Header
		body         string
		moved        int64
	}
	get := func(path string, moved int64) request { return request{"GET", path, http.Header{}, "", moved} }
	put := func(path, body string, moved int64) request { return request{"PUT", path, http.Header{}, body, moved} }
	for name, requests := range map[string][]request{
		"PUT, repeated":           {put("/b/a", data, 8192), put("/b/a", data, 8192)},
		"PUT and another one":     {put("/b/a", data, 8192), put("/b/c", data, 0)},
		"PUT of another length":   {put("/b/a", data[:8], 0)},
		"PUT of a longer one":     {put("/b/a", data+"x", 0)},
		"PUT of a part":           {put("/b/p?partNumber=2&uploadId=1", data, 8192), put("/b/p?partNumber=3&uploadId=1", data, 0)},
		"PUT of an ACL":           {put("/b/a?acl", data, 0)},
		"PUT, chunked":            {{"PUT", "/b/a", http.Header{"X-Amz-Decoded-Content-Length": {"8191"}}, data, 0}},
		"PUT, signed":             {{"PUT", "/b/a", http.Header{"Authorization": {"AWS4-HMAC-SHA256 Credential=a, SignedHeaders=host, Signature=0"}}, data, 0}},
		"PUT, presigned":          {put("/b/a?X-Amz-SignedHeaders=host&X-Amz-Signature=0", data, 0)},
		"GET":                     {get("/b/object", 8192), get("/b/object", 8192)},
		"GET of ranges":           {{"GET", "/b/object", http.Header{"Range": {"bytes=0-9"}}, "", 10}, {"GET", "/b/object", http.Header{"Range": {"bytes=10-19"}}, "", 0}},
		"GET that does not exist": {get("/b/none", 0)},
	} {
		testenv.Must(t, os.WriteFile(filepath.Join(dir, "object"), []byte(data), 0o600))
		ctx := WithRegion(t.Context(), g, 8192)
		client := &http.Client{Transport: new(Transport)}
		for i, q := range requests {
			*moved = 0
			fill(g.Bytes(), 1)
			req, err := http.NewRequestWithContext(ctx, q.method, url+q.path, strings.NewReader(q.body))
			testenv.Must(t, err)
			req.Header = q.header
			resp, err := client.Do(req)
			testenv.Must(t, err)
			got, err := io.ReadAll(resp.Body)
			testenv.Must(t, err)
			resp.Body.Close()
			if *moved != q.moved {
				t.Errorf("%s, request %d: %d bytes by RDMA, want %d", name, i, *moved, q.moved)
			}
			if strings.HasSuffix(q.path, "/none") && !strings.Contains(string(got), "NoSuchKey") {
				t.Errorf("%s: the body of the error is %q", name, got)
			}
			if q.method == "PUT" {
				file := strings.TrimPrefix(q.path, "/b/")
				if file, _, _ = strings.Cut(file, "?"); file == "p" {
					file += "." + req.URL.Query().Get("partNumber")
				}
				if got, err := os.ReadFile(filepath.Join(dir, file)); err != nil || string(got) != q.body {
					t.Errorf("%s, request %d: the server has %d bytes, %v, want %d", name, i, len(got), err, len(q.body))
				}
			}
		}
	}
}

// TestTransportBody reads the body of an answer, which is the memory of the region: nobody else
// gets that meanwhile.
func TestTransportBody(t *testing.T) {
	r := newRig(t, InitiatorOptions{Networks: everywhere})
	url, dir, _ := serveOffers(t, r)
	testenv.Must(t, os.WriteFile(filepath.Join(dir, "object"), make([]byte, 8192), 0o600))
	g := r.region(t, 8192)
	for range 2 {
		req, err := http.NewRequestWithContext(WithRegion(t.Context(), g, 8192), http.MethodGet, url+"/b/object", nil)
		testenv.Must(t, err)
		resp, err := (&http.Client{Transport: new(Transport)}).Do(req)
		testenv.Must(t, err)
		if err := g.Close(); !isBusy(err) {
			t.Errorf("Close before the body is closed: %v", err)
		}
		other, _ := http.NewRequest(http.MethodGet, url, nil)
		if _, err := g.Offer(t.Context(), other, 0, 1); !isBusy(err) {
			t.Errorf("Offer before the body is closed: %v", err)
		}
		data, err := io.ReadAll(resp.Body)
		if len(data) != 8192 || err != nil {
			t.Errorf("the body has %d bytes, %v", len(data), err)
		}
		resp.Body.Close()
		resp.Body.Close()
	}
	closed(t, g)
}

func isBusy(err error) bool {
	return err != nil && strings.Contains(err.Error(), syscall.EBUSY.Error())
}

// TestOfferHeaders offers regions with requests that were made for a body.
func TestOfferHeaders(t *testing.T) {
	r := newRig(t, InitiatorOptions{})
	g := r.region(t, 4096)
	req := httptest.NewRequest(http.MethodPut, "/b/k", strings.NewReader("x"))
	req.Header = http.Header{
		"Content-Encoding": {"aws-chunked, gzip", "br"}, "X-Amz-Trailer": {"x-amz-checksum-crc32"}, "X-Amz-Decoded-Content-Length": {"1"}, "X-Amz-Sdk-Checksum-Algorithm": {"CRC32"},
		"Expect": {"100-continue"}, "Content-Md5": {"x"}, "Content-Length": {"1"}, "Content-Type": {"a/b"},
	}
	x, err := g.Offer(context.Background(), req, 0, 4096)
	testenv.Must(t, err)
	x.loan.end(false)
	var left []string
	for name := range req.Header {
		left = append(left, name)
	}
	slices.Sort(left)
	if got, want := strings.Join(left, " "), "Content-Encoding Content-Type X-Amz-Content-Sha256 X-Amz-Rdma-Token"; got != want || req.Header.Get("Content-Encoding") != "gzip, br" {
		t.Errorf("the headers are %s, want %s; Content-Encoding is %q", got, want, req.Header.Values("Content-Encoding"))
	}
	req = httptest.NewRequest(http.MethodPut, "/b/k", nil)
	req.Header = http.Header{"Content-Encoding": {"aws-chunked"}, "X-Amz-Sdk-Checksum-Algorithm": {"CRC32"}, "X-Amz-Checksum-Crc32": {"AAAAAA=="}}
	x, err = g.Offer(t.Context(), req, 0, 4096)
	testenv.Must(t, err)
	x.loan.end(false)
	if _, ok := req.Header["Content-Encoding"]; ok || req.Header.Get("X-Amz-Sdk-Checksum-Algorithm") != "CRC32" || req.Header.Get("X-Amz-Checksum-Crc32") == "" {
		t.Errorf("the header is %v", req.Header)
	}
	for given, want := range map[string]string{"": "identity", "gzip": "gzip"} {
		req = httptest.NewRequest(http.MethodGet, "/b/k", nil)
		req.Header.Set("Accept-Encoding", given)
		x, err = g.Offer(t.Context(), req, 0, 4096)
		testenv.Must(t, err)
		x.loan.end(false)
		if got := req.Header.Get("Accept-Encoding"); got != want {
			t.Errorf("Accept-Encoding is %q, want %q", got, want)
		}
	}
}

// TestOfObject checks which requests are for the data of objects.
func TestOfObject(t *testing.T) {
	for url, want := range map[string]bool{
		"GET /b/k": true, "PUT /k": true, "GET /b/k?versionId=1&x-id=GetObject&response-expires=1": true, "PUT /b/k?partNumber=1&uploadId=1": true,
		"GET /b/k?X-Amz-Signature=1": true, "GET /": false, "GET /b?list-type=2": false, "PUT /b/k?tagging": false, "POST /b/k": false, "HEAD /b/k": false,
	} {
		method, path, _ := strings.Cut(url, " ")
		if got := ofObject(httptest.NewRequest(method, path, nil)); got != want {
			t.Errorf("%s: %v, want %v", url, got, want)
		}
	}
	copies := httptest.NewRequest(http.MethodPut, "/b/k", nil)
	copies.Header.Set("X-Amz-Copy-Source", "/b/other")
	if ofObject(copies) {
		t.Error("a copy is for the data of an object")
	}
}
