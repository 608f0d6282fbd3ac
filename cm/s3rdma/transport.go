package s3rdma

import (
	"cmp"
	"context"
	"errors"
	"net/http"
	"strconv"
	"strings"
	"sync"
)

// Transport is a [http.RoundTripper] for clients of S3 that have an option for one, such as
// aws-sdk-go-v2 and minio-go. A request whose context comes from [WithRegion] offers the region. If
// the server declines, the request goes on as the client has made it. Of all other requests the
// transport does nothing. A transport remembers servers that decline, and treats conditional
// requests, as a [Client] does.
//
// Clients sign a request before a transport sees it, so it must be signed again. Where a redirect
// leads to gets no offer.
type Transport struct {
	Base http.RoundTripper         // Base sends requests; by default as [http.DefaultTransport], without compression.
	Sign func(*http.Request) error // Sign replaces the signature of a request, with the payload hash UNSIGNED-PAYLOAD. If it is nil, signed requests make no offer.

	servers servers
}

// offerKey is the key of a context.
type offerKey struct{}

// offer is what a context has.
type offer struct {
	region *Region
	n      int

	mu    sync.Mutex
	first string // the first request that the offer was for
}

// of reports whether an offer is for a request: it is for the first one, and for those that repeat
// it.
func (o *offer) of(req *http.Request) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	this := req.Method + " " + req.URL.String() + " " + req.Header.Get("Range")
	o.first = cmp.Or(o.first, this)
	return o.first == this
}

// WithRegion returns a context for one GET or PUT of an object or a part by a client with a
// [Transport]. The first such request with the context, and repetitions of it, offer the first n
// bytes of the region; others do not, and a PUT does not whose body has another length.
//
// The body of a PUT must have the same bytes as the region, for a server that declines. The body of
// an answer to a GET is the object in any case, but of a dma-buf; if the header x-amz-rdma-reply is
// 200 or 206, it is also in the region, which stays in use until the body is closed.
func WithRegion(ctx context.Context, r *Region, n int) context.Context {
	return context.WithValue(ctx, offerKey{}, &offer{region: r, n: n})
}

// offers returns the offer that a request makes, or nil.
func (t *Transport) offers(req *http.Request) *offer {
	o, ok := req.Context().Value(offerKey{}).(*offer)
	switch {
	case !ok, !ofObject(req), req.URL.Query().Has("X-Amz-Signature"), t.Sign == nil && req.Header.Get("Authorization") != "":
		return nil
	case !o.of(req), req.Method == http.MethodPut && bodyLength(req) != int64(o.n), !t.servers.takes(req.URL.Host, req, o.region):
		return nil
	}
	return o
}

// bodyLength returns how many bytes of data a body has.
func bodyLength(req *http.Request) int64 {
	s := req.Header.Get("X-Amz-Decoded-Content-Length")
	if s == "" {
		return req.ContentLength
	}
	if n, err := strconv.ParseInt(s, 10, 64); err == nil {
		return n
	}
	return -1
}

// RoundTrip implements [http.RoundTripper].
func (t *Transport) RoundTrip(req *http.Request) (*http.Response, error) {
	base := transport(t.Base)
	o := t.offers(req)
	if o == nil {
		return base.RoundTrip(req)
	}
	with := req.Clone(req.Context())
	with.Header.Del("Authorization")
	x, err := o.region.Offer(req.Context(), with, 0, o.n)
	if err != nil {
		return nil, closeBody(req, err)
	}
	if t.Sign != nil {
		if err := t.Sign(with); err != nil {
			x.End(nil, err)
			return nil, closeBody(req, err)
		}
	}
	resp, err := base.RoundTrip(with)
	data := o.region.Bytes() // nil of a dma-buf
	n, err := x.end(resp, err, req.Method == http.MethodGet)
	t.servers.learn(req.URL.Host, err)
	if err == nil && req.Method == http.MethodGet {
		resp.Body.Close()
		resp.ContentLength = int64(min(n, len(data)))
		resp.Body = &body{data: data[:resp.ContentLength], free: x.loan.release}
		resp.Header.Set("Content-Length", strconv.FormatInt(resp.ContentLength, 10))
		return resp, nil
	}
	x.loan.release()
	switch {
	case resp == nil:
		return nil, closeBody(req, err)
	case err == nil, errors.Is(err, ErrDeclined) && req.Method == http.MethodGet && resp.StatusCode < 300:
		return resp, closeBody(req, nil)
	case errors.Is(err, ErrDeclined), errors.Is(err, ErrUnproven):
		resp.Body.Close()
		return base.RoundTrip(req)
	case errors.As(err, new(*ResponseError)):
		return resp, closeBody(req, nil)
	}
	resp.Body.Close()
	return nil, closeBody(req, err)
}

// closeBody closes the body of a request that was not sent, as a transport must.
func closeBody(req *http.Request, err error) error {
	if req.Body != nil {
		req.Body.Close()
	}
	return err
}

// ofObject reports whether a request is a GET or PUT of the data of an object or a part, and not of
// a bucket without a name in the path.
func ofObject(req *http.Request) bool {
	if req.Method != http.MethodGet && req.Method != http.MethodPut || req.Header.Get("X-Amz-Copy-Source") != "" || strings.Trim(req.URL.Path, "/") == "" {
		return false
	}
	for name := range req.URL.Query() {
		switch {
		case name == "versionId", name == "partNumber", name == "uploadId", name == "x-id", strings.HasPrefix(name, "response-"):
		case len(name) > 6 && strings.EqualFold(name[:6], "X-Amz-"): // a signature
		default:
			return false // a part of what S3 knows of an object or a bucket, such as its ACL
		}
	}
	return true
}
