package s3rdma

import (
	"context"
	"encoding/base64"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc64"
	"io"
	"net/http"
	"net/url"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"
)

// Client gets and puts objects, by RDMA where the server moves them so, and otherwise by the bodies of requests. It is
// safe for concurrent use, with a region for each request.
type Client struct {
	Endpoint string // Endpoint is the address of the server, such as "http://192.0.2.1:7070".

	// Sign signs a request, if the server wants that. The signature must cover all headers that begin with x-amz-. It
	// does not cover the data: the request says UNSIGNED-PAYLOAD.
	Sign func(*http.Request) error

	Transport http.RoundTripper // Transport sends requests; by default [http.DefaultTransport].
	Timeout   time.Duration     // Timeout is how long a request may take, and a server has access to memory; by default a minute.
	BodyOnly  bool              // BodyOnly means no offers.
}

// Result is what a request has done.
type Result struct {
	N      int         // N is how many bytes of the region were sent or received.
	RDMA   bool        // RDMA says that they went by RDMA, not by a body.
	Header http.Header // Header is the header of the answer: ETag, Last-Modified, Content-Range.
}

// PutOptions are the options of [Client.Put].
type PutOptions struct {
	Header   http.Header // Header is added to the request, such as Content-Type and x-amz-meta-.
	UploadID string      // UploadID makes the data a part of a multipart upload.
	Part     int         // Part is the number of the part, from 1 to 10000.
	Checksum bool        // Checksum sends a checksum of the data (CRC-64/NVME), which the server checks. It takes processor time.
}

// Put stores the first n bytes of a region as an object, "bucket/key", or as a part of one. It returns without an error
// only if it is known that the server has all of them.
func (c *Client) Put(ctx context.Context, object string, r *Region, n int, o PutOptions) (Result, error) {
	if o.UploadID != "" && (o.Part < 1 || o.Part > 10000) {
		return Result{}, fmt.Errorf("s3rdma: Part is %d, want 1 to 10000", o.Part)
	}
	q := url.Values{}
	if o.UploadID != "" {
		q.Set("partNumber", strconv.Itoa(o.Part))
		q.Set("uploadId", o.UploadID)
	}
	if n < 0 || n > r.size {
		return Result{}, fmt.Errorf("s3rdma: the object has %d bytes, want 0 to %d, the size of the region", n, r.size)
	}
	ctx, cancel := c.context(ctx)
	defer cancel()
	do := func(offer bool) (Result, error) {
		req, err := c.request(ctx, http.MethodPut, object, q, o.Header)
		if err != nil {
			return Result{}, err
		}
		if o.Checksum && n > 0 && r.buf != nil {
			req.Header.Set("X-Amz-Checksum-Crc64nvme", checksum(r.Bytes()[:n]))
		}
		if offer {
			return c.exchange(req, r, n)
		}
		return c.send(req, r, n)
	}
	if n == 0 || c.BodyOnly {
		return do(false)
	}
	res, err := do(true)
	if errors.Is(err, ErrUnproven) && o.UploadID == "" {
		if err = c.prove(ctx, object, res.Header.Get("Etag"), n); err == nil {
			res.N, res.RDMA = n, true
			return res, nil
		}
	}
	if errors.Is(err, ErrDeclined) || errors.Is(err, ErrUnproven) {
		return do(false)
	}
	return res, err
}

// GetOptions are the options of [Client.Get].
type GetOptions struct {
	Header http.Header // Header is added to the request, such as If-Match.
	Offset int64       // Offset is the first byte of the object that is wanted.
	Length int         // Length is how many bytes are wanted at most; by default all from Offset, which must fit into the region.
}

// Get gets an object, "bucket/key", or a range of it, into a region from its start. If there are more bytes than fit,
// it fails with an error that matches [io.ErrShortBuffer].
func (c *Client) Get(ctx context.Context, object string, r *Region, o GetOptions) (Result, error) {
	if o.Offset < 0 || o.Length < 0 || o.Length > r.size {
		return Result{}, fmt.Errorf("s3rdma: the range is %d bytes from %d, want 0 to %d bytes from 0 or more", o.Length, o.Offset, r.size)
	}
	ctx, cancel := c.context(ctx)
	defer cancel()
	req, err := c.request(ctx, http.MethodGet, object, nil, o.Header)
	if err != nil {
		return Result{}, err
	}
	n := r.size
	switch {
	case o.Length > 0:
		n = o.Length
		req.Header.Set("Range", fmt.Sprintf("bytes=%d-%d", o.Offset, o.Offset+int64(n)-1))
	case o.Offset > 0:
		req.Header.Set("Range", fmt.Sprintf("bytes=%d-", o.Offset))
	}
	if c.BodyOnly {
		return c.send(req, r, n)
	}
	again := req.Clone(ctx)
	res, err := c.exchange(req, r, n)
	if errors.Is(err, ErrDeclined) {
		return c.send(again, r, n)
	}
	if err == nil && res.N == n && o.Length == 0 && res.RDMA { // the server may have left out what did not fit
		err = c.whole(ctx, object, res, o.Offset)
	}
	return res, err
}

// context limits the time of a request.
func (c *Client) context(ctx context.Context) (context.Context, context.CancelFunc) {
	t := c.Timeout
	if t <= 0 {
		t = time.Minute
	}
	return context.WithTimeout(ctx, t)
}

// request makes a request for an object.
func (c *Client) request(ctx context.Context, method, object string, q url.Values, h http.Header) (*http.Request, error) {
	bucket, key, ok := strings.Cut(object, "/")
	if !ok || bucket == "" || key == "" {
		return nil, fmt.Errorf("s3rdma: the object is %q, want BUCKET/KEY", object)
	}
	u, err := url.Parse(c.Endpoint)
	if err != nil {
		return nil, fmt.Errorf("s3rdma: Endpoint: %w", err)
	}
	u.Path, u.RawPath, u.RawQuery = strings.TrimSuffix(u.Path, "/")+"/"+object, "", q.Encode()
	req, err := http.NewRequestWithContext(ctx, method, u.String(), nil)
	if err != nil {
		return nil, err
	}
	for name, values := range h {
		req.Header[http.CanonicalHeaderKey(name)] = values
	}
	return req, nil
}

// do signs and sends a request. Redirects are answers: what follows them would send the token to another host.
func (c *Client) do(req *http.Request) (*http.Response, error) {
	if c.Sign != nil {
		if err := c.Sign(req); err != nil {
			return nil, fmt.Errorf("s3rdma: Sign: %w", err)
		}
	}
	t := c.Transport
	if t == nil {
		t = http.DefaultTransport
	}
	return t.RoundTrip(req)
}

// exchange sends a request with an offer.
func (c *Client) exchange(req *http.Request, r *Region, n int) (Result, error) {
	x, err := r.Offer(req.Context(), req, 0, n)
	if err != nil {
		return Result{}, err
	}
	resp, err := c.do(req)
	moved, err := x.End(resp, err)
	if resp == nil {
		return Result{}, err
	}
	defer resp.Body.Close()
	if errors.Is(err, ErrDeclined) && req.Method == http.MethodGet && resp.StatusCode < 300 {
		return r.receive(req, resp, n) // the object is in the body
	}
	return Result{N: moved, RDMA: err == nil, Header: resp.Header}, err
}

// send sends a request with the data in a body.
func (c *Client) send(req *http.Request, r *Region, n int) (Result, error) {
	req.Header.Set("X-Amz-Content-Sha256", "UNSIGNED-PAYLOAD")
	if req.Method == http.MethodPut {
		memory, err := r.hold()
		if err != nil {
			return Result{}, err
		}
		defer r.unhold()
		b := &body{data: memory[:n]}
		defer b.Close() // a transport may still read when it has returned
		req.Body, req.ContentLength = b, int64(n)
		if n == 0 {
			req.Body = http.NoBody
		}
	}
	resp, err := c.do(req)
	if err != nil {
		return Result{}, err
	}
	defer resp.Body.Close()
	switch {
	case resp.StatusCode < 200 || resp.StatusCode > 299:
		return Result{}, responseError(resp)
	case req.Method == http.MethodPut:
		return Result{N: n, Header: resp.Header}, nil
	}
	return r.receive(req, resp, n)
}

// receive reads the body of an answer to a GET of n bytes at most.
func (r *Region) receive(req *http.Request, resp *http.Response, n int) (Result, error) {
	memory, err := r.hold()
	if err != nil {
		return Result{}, err
	}
	defer r.unhold()
	res := Result{Header: resp.Header}
	res.N, err = io.ReadFull(resp.Body, memory[:n])
	switch asked := req.Header.Get("Range"); {
	case errors.Is(err, io.ErrUnexpectedEOF) && resp.ContentLength > int64(res.N): // the connection broke
		return res, err
	case err != nil && !errors.Is(err, io.EOF) && !errors.Is(err, io.ErrUnexpectedEOF):
		return res, err
	case asked != "" && resp.StatusCode != http.StatusPartialContent:
		return res, errAnswer("the request is for %q, and the answer is the whole object", asked)
	case asked != "":
		if err := checkRange(asked, resp.Header.Get("Content-Range"), contentLength(resp, res.N)); err != nil {
			return res, err
		}
	}
	if more, _ := resp.Body.Read(make([]byte, 1)); more > 0 {
		return res, errShort(resp.ContentLength, n)
	}
	return res, nil
}

// contentLength returns the length of a body of which n bytes were read.
func contentLength(resp *http.Response, n int) int64 {
	if resp.ContentLength >= 0 {
		return resp.ContentLength
	}
	return int64(n)
}

// errShort is the error of an object that does not fit.
func errShort(size int64, room int) error {
	return fmt.Errorf("s3rdma: the object has %d bytes, and there is room for %d: %w", size, room, io.ErrShortBuffer)
}

// Head returns the size of an object, and its header.
func (c *Client) Head(ctx context.Context, object string) (size int64, h http.Header, err error) {
	ctx, cancel := c.context(ctx)
	defer cancel()
	req, err := c.request(ctx, http.MethodHead, object, nil, nil)
	if err != nil {
		return 0, nil, err
	}
	req.Header.Set("X-Amz-Content-Sha256", "UNSIGNED-PAYLOAD")
	resp, err := c.do(req)
	if err != nil {
		return 0, nil, err
	}
	defer resp.Body.Close()
	switch {
	case resp.StatusCode != http.StatusOK:
		return 0, nil, responseError(resp)
	case resp.ContentLength < 0:
		return 0, nil, errAnswer("the answer to a HEAD has no Content-Length")
	}
	return resp.ContentLength, resp.Header, nil
}

// prove returns nil if an object has n bytes and the ETag that the answer to its PUT had.
func (c *Client) prove(ctx context.Context, object, etag string, n int) error {
	size, h, err := c.Head(ctx, object)
	if err == nil && size == int64(n) && etag != "" && h.Get("Etag") == etag {
		return nil
	}
	return ErrUnproven
}

// whole returns an error if an object has more bytes than a GET from an offset has filled the region with.
func (c *Client) whole(ctx context.Context, object string, res Result, offset int64) error {
	size, h, err := c.Head(ctx, object)
	switch {
	case err != nil:
		return fmt.Errorf("%w: whether the object has more than %d bytes is not known", err, res.N)
	case h.Get("Etag") != res.Header.Get("Etag"):
		return errAnswer("the object has changed: whether it had more than %d bytes is not known", res.N)
	case size-offset > int64(res.N):
		return errShort(size-offset, res.N)
	}
	return nil
}

// checksum returns the sum of data as headers have it.
func checksum(data []byte) string {
	return base64.StdEncoding.EncodeToString(binary.BigEndian.AppendUint64(nil, crc64.Checksum(data, nvme)))
}

// nvme is the table of CRC-64/NVME.
var nvme = crc64.MakeTable(0x9a6c9329ac4bc9b5)

// body is memory as the body of a request. After Close nobody reads the memory any more.
type body struct {
	mu   sync.Mutex
	data []byte
	done bool
}

// Read implements [io.Reader].
func (b *body) Read(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	switch {
	case b.done:
		return 0, os.ErrClosed
	case len(b.data) == 0:
		return 0, io.EOF
	}
	n := copy(p, b.data)
	b.data = b.data[n:]
	return n, nil
}

// Close implements [io.Closer].
func (b *body) Close() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.data, b.done = nil, true
	return nil
}
