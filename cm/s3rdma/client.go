package s3rdma

import (
	"context"
	"encoding/base64"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc64"
	"io"
	"math"
	"net/http"
	"net/url"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"
)

// Client gets and puts objects, by RDMA where the server moves them so, and otherwise by the bodies
// of requests. It is safe for concurrent use, with a region for each request.
//
// A server that has declined or ignored an offer gets no other one for five minutes, unless it has
// moved data before. A PUT with If-Match or If-None-Match has an offer only if the server has moved
// data for this client before: one that ignores offers would store an empty object, and then refuse
// the data. The first PUT to a server has a sum of the data (CRC-64/NVME), so that a server that
// checks sums refuses instead.
type Client struct {
	Endpoint string // Endpoint is the address of the server, such as "http://192.0.2.1:7070".

	// Sign signs a request, if the server wants that. The signature must cover all headers that
	// begin with x-amz-. It does not cover the data: the request says UNSIGNED-PAYLOAD.
	Sign func(*http.Request) error

	Transport http.RoundTripper // Transport sends requests; by default as [http.DefaultTransport], without compression.
	Timeout   time.Duration     // Timeout is how long a request may take, and a server has access to memory; by default a minute.
	BodyOnly  bool              // BodyOnly means no offers.

	servers servers
}

// Result is what a request has done.
type Result struct {
	N       int         // N is how many bytes of the region were sent or received.
	RDMA    bool        // RDMA says that they went by RDMA, not by a body.
	Checked bool        // Checked says that they have the sum that the server has of the object, see GetOptions.
	Header  http.Header // Header is the header of the answer: ETag, Last-Modified, Content-Range.
}

// PutOptions are the options of [Client.Put].
type PutOptions struct {
	Header   http.Header // Header is added to the request, such as Content-Type and x-amz-meta-.
	UploadID string      // UploadID makes the data a part of a multipart upload.
	Part     int         // Part is the number of the part, from 1 to 10000.
	Checksum bool        // Checksum sends a sum of the data (CRC-64/NVME), for servers that check it. It takes processor time. There is none of a dma-buf.
}

// Put stores the first n bytes of a region as an object, "bucket/key", or as a part of one. It
// returns without an error only if it is known that the server has all of them.
func (c *Client) Put(ctx context.Context, object string, r *Region, n int, o PutOptions) (Result, error) {
	switch {
	case o.UploadID != "" && (o.Part < 1 || o.Part > 10000):
		return Result{}, fmt.Errorf("s3rdma: Part is %d, want 1 to 10000", o.Part)
	case o.UploadID == "" && o.Part != 0:
		return Result{}, fmt.Errorf("s3rdma: Part is %d and UploadID is empty, want both or none", o.Part)
	case o.Checksum && r.buf == nil:
		return Result{}, errors.New("s3rdma: Checksum is set, want none of a dma-buf")
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
	req, err := c.request(ctx, http.MethodPut, object, q, o.Header)
	if err != nil {
		return Result{}, err
	}
	if o.Checksum && n > 0 {
		if err := setSum(req, r, n); err != nil {
			return Result{}, err
		}
	}
	if n == 0 || c.BodyOnly || !c.servers.takes(c.Endpoint, req, r) {
		return c.send(req, r, n)
	}
	again := req.Clone(ctx)
	if o.UploadID == "" && r.buf != nil && !hasSum(req.Header) && !c.servers.proven(c.Endpoint) {
		if err := setSum(req, r, n); err != nil {
			return Result{}, err
		}
	}
	res, err := c.exchange(req, r, n)
	if errors.Is(err, ErrUnproven) && o.UploadID == "" {
		if err = c.prove(ctx, object, res.Header.Get("Etag"), n); err == nil {
			res.N, res.RDMA = n, true
		}
	}
	c.servers.learn(c.Endpoint, err)
	if errors.Is(err, ErrDeclined) || errors.Is(err, ErrUnproven) {
		return c.send(again, r, n)
	}
	return res, err
}

// sumHeader is the header of the sum that a client computes.
const sumHeader = "X-Amz-Checksum-Crc64nvme"

// setSum adds the sum of the first n bytes of a region to a request.
func setSum(req *http.Request, r *Region, n int) error {
	memory, err := r.hold()
	if err != nil {
		return err
	}
	defer r.unhold()
	req.Header.Set(sumHeader, checksum(memory[:n]))
	return nil
}

// hasSum reports whether a request has, or announces, a sum of its data.
func hasSum(h http.Header) bool {
	for name := range h {
		if strings.HasPrefix(name, "X-Amz-Checksum-") || name == "X-Amz-Sdk-Checksum-Algorithm" || name == "X-Amz-Trailer" {
			return true
		}
	}
	return false
}

// GetOptions are the options of [Client.Get].
type GetOptions struct {
	Header http.Header // Header is added to the request, such as If-Match; not Range, which the next two make.
	Offset int64       // Offset is the first byte of the object that is wanted.
	Length int         // Length is how many bytes are wanted at most; by default all from Offset, which must fit into the region.

	// Checksum asks for the sum of the object. If the server has one of all of the data (of five
	// kinds), the data is compared with it, and another sum is an error that matches EBADMSG. It is
	// not for a part of an object, nor for a dma-buf.
	Checksum bool
}

// Get gets an object, "bucket/key", or a range of it, into a region from its start. If there are
// more bytes than fit, it fails with an error that matches [io.ErrShortBuffer].
func (c *Client) Get(ctx context.Context, object string, r *Region, o GetOptions) (Result, error) {
	if !o.Checksum {
		return c.get(ctx, object, r, o)
	}
	if o.Offset != 0 || o.Length != 0 || r.buf == nil {
		return Result{}, errors.New("s3rdma: Checksum is set with Offset or Length, or of a dma-buf, want none of them")
	}
	if o.Header = o.Header.Clone(); o.Header == nil {
		o.Header = http.Header{}
	}
	o.Header.Set("X-Amz-Checksum-Mode", "ENABLED")
	res, err := c.get(ctx, object, r, o)
	if err == nil {
		res.Checked, err = r.check(res.Header, res.N)
	}
	return res, err
}

// get is Get without a check of the data.
func (c *Client) get(ctx context.Context, object string, r *Region, o GetOptions) (Result, error) {
	if o.Offset < 0 || o.Length < 0 || o.Length > r.size {
		return Result{}, fmt.Errorf("s3rdma: the range is %d bytes from %d, want 0 to %d bytes from 0 or more", o.Length, o.Offset, r.size)
	}
	ctx, cancel := c.context(ctx)
	defer cancel()
	req, err := c.request(ctx, http.MethodGet, object, nil, o.Header)
	if err != nil {
		return Result{}, err
	}
	if s := req.Header.Get("Range"); s != "" {
		return Result{}, fmt.Errorf("s3rdma: Header has the Range %q, want Offset and Length", s)
	}
	if o.Offset > math.MaxInt64-int64(o.Length) {
		return Result{}, fmt.Errorf("s3rdma: Offset is %d, want 0 to %d with a Length of %d", o.Offset, math.MaxInt64-int64(o.Length), o.Length)
	}
	n := r.size
	switch {
	case o.Length > 0:
		n = o.Length
		req.Header.Set("Range", fmt.Sprintf("bytes=%d-%d", o.Offset, o.Offset+int64(n)-1))
	case o.Offset > 0:
		req.Header.Set("Range", fmt.Sprintf("bytes=%d-", o.Offset))
	}
	if c.BodyOnly || !c.servers.takes(c.Endpoint, req, r) {
		return c.send(req, r, n)
	}
	again := req.Clone(ctx)
	res, err := c.exchange(req, r, n)
	if errors.Is(err, ErrDeclined) || errors.Is(err, ErrUnproven) {
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
	u.Path, u.RawQuery = strings.TrimSuffix(u.Path, "/")+"/"+object, q.Encode()
	u.RawPath = escape(u.Path)
	req, err := http.NewRequestWithContext(ctx, method, u.String(), nil)
	if err != nil {
		return nil, err
	}
	for name, values := range h {
		req.Header[http.CanonicalHeaderKey(name)] = values
	}
	return req, nil
}

// escape escapes a path as signatures of S3 do: all but letters, digits and -._~/ is escaped.
func escape(path string) string {
	var b strings.Builder
	for i := range len(path) {
		switch c := path[i]; {
		case 'a' <= c && c <= 'z', 'A' <= c && c <= 'Z', '0' <= c && c <= '9', strings.IndexByte("-._~/", c) >= 0:
			b.WriteByte(c)
		default:
			fmt.Fprintf(&b, "%%%02X", c)
		}
	}
	return b.String()
}

// do signs and sends a request. Redirects are answers: what follows them would send the token to
// another host.
func (c *Client) do(req *http.Request) (*http.Response, error) {
	if c.Sign != nil {
		if err := c.Sign(req); err != nil {
			return nil, fmt.Errorf("s3rdma: Sign: %w", err)
		}
	}
	return transport(c.Transport).RoundTrip(req)
}

// transport returns a transport, or that for clients which have none: the one of net/http, without
// compression.
func transport(t http.RoundTripper) http.RoundTripper {
	if t == nil {
		return uncompressed()
	}
	return t
}

var uncompressed = sync.OnceValue(func() http.RoundTripper {
	t, ok := http.DefaultTransport.(*http.Transport)
	if !ok { // a program has another one; requests ask for no compression
		return http.DefaultTransport
	}
	t = t.Clone()
	t.DisableCompression = true
	return t
})

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
	defer func() { resp.Body.Close() }()
	if req.Method == http.MethodGet {
		c.servers.learn(c.Endpoint, err)
		switch {
		case errors.Is(err, ErrDeclined) && resp.StatusCode < 300:
			return r.receive(req, resp, n) // the object is in the body
		case err == nil && req.Header.Get("Range") == "" && (resp.StatusCode == http.StatusPartialContent || resp.Header.Get(replyHeader) == "206"):
			return Result{}, errAnswer("the request is for the whole object, and the answer is a part of it")
		}
	}
	return Result{N: moved, RDMA: err == nil, Header: resp.Header}, err
}

// send sends a request with the data in a body.
func (c *Client) send(req *http.Request, r *Region, n int) (Result, error) {
	req.Header.Set("X-Amz-Content-Sha256", "UNSIGNED-PAYLOAD")
	switch {
	case req.Method == http.MethodGet:
		plain(req.Header)
	case n == 0:
		req.Body = http.NoBody
	default:
		memory, err := r.hold()
		if err != nil {
			return Result{}, err
		}
		defer r.unhold()
		b := &body{data: memory[:n]}
		defer b.Close() // a transport may still read when it has returned
		req.Body, req.ContentLength = b, int64(n)
	}
	resp, err := c.do(req)
	if err != nil {
		return Result{}, err
	}
	defer func() { resp.Body.Close() }()
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
	res := Result{Header: resp.Header}
	asked := req.Header.Get("Range")
	switch {
	case asked == "" && resp.StatusCode != http.StatusOK:
		return res, errAnswer("the answer to a GET has status %d, want 200", resp.StatusCode)
	case asked != "" && resp.StatusCode != http.StatusPartialContent:
		return res, errAnswer("the request is for %q, and the answer has status %d, want 206", asked, resp.StatusCode)
	}
	memory, err := r.hold()
	if err != nil {
		return res, err
	}
	defer r.unhold()
	if res.N, err = readFull(resp.Body, memory[:n]); err != nil {
		return res, err
	}
	if asked != "" {
		if err := checkRange(asked, resp.Header.Get("Content-Range"), contentLength(resp, res.N)); err != nil {
			return res, err
		}
	}
	more, err := readFull(resp.Body, make([]byte, 1))
	if more > 0 {
		return res, errShort(resp.ContentLength, n)
	}
	return res, err
}

// readFull reads until p is full, or the reader ends. Other than [io.ReadFull], it tells the end
// from [io.ErrUnexpectedEOF], with which a body ends that has broken off.
func readFull(r io.Reader, p []byte) (n int, err error) {
	for n < len(p) && err == nil {
		var k int
		k, err = r.Read(p[n:])
		n += k
	}
	return n, ignoreEOF(err)
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
	if size < 0 {
		return fmt.Errorf("s3rdma: the object has more than %d bytes, the room for it: %w", room, io.ErrShortBuffer)
	}
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

// whole returns an error if an object has more bytes than a GET from an offset has filled the
// region with.
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

// checksum returns the sum of data as sumHeader has it.
func checksum(data []byte) string {
	return base64.StdEncoding.EncodeToString(binary.BigEndian.AppendUint64(nil, crc64.Checksum(data, nvme)))
}

// body is memory as the body of a request. After Close nobody reads the memory any more.
type body struct {
	mu   sync.Mutex
	data []byte
	done bool
	free func() // nil, or called by Close
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
	if !b.done && b.free != nil {
		b.free()
	}
	b.data, b.done = nil, true
	return nil
}
