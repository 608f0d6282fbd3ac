package s3rdma

import (
	"context"
	"errors"
	"net/http"
	"strconv"
	"strings"
)

// Transport is a [http.RoundTripper] for clients of S3 that have an option for one, such as aws-sdk-go-v2 and minio-go.
// A request whose context comes from [WithRegion] offers the region. If the server declines, the request goes on as the
// client has made it. Of all other requests the transport does nothing.
//
// Clients sign a request before a transport sees it, so it must be signed again.
type Transport struct {
	Base http.RoundTripper         // Base sends requests; by default [http.DefaultTransport].
	Sign func(*http.Request) error // Sign replaces the signature of a request, with the payload hash UNSIGNED-PAYLOAD; nil means no signature.
}

// offerKey is the key of a context.
type offerKey struct{}

// offer is what a context has.
type offer struct {
	region *Region
	n      int
}

// WithRegion returns a context for one GET or PUT of an object or a part by a client with a [Transport]. The request offers
// the first n bytes of the region. The body of a PUT must have the same bytes, for a server that declines. The body of
// an answer to a GET is the object in any case: if the header x-amz-rdma-reply is 200 or 206, it is also in the region.
func WithRegion(ctx context.Context, r *Region, n int) context.Context {
	return context.WithValue(ctx, offerKey{}, offer{r, n})
}

// RoundTrip implements [http.RoundTripper].
func (t *Transport) RoundTrip(req *http.Request) (*http.Response, error) {
	base := t.Base
	if base == nil {
		base = http.DefaultTransport
	}
	o, ok := req.Context().Value(offerKey{}).(offer)
	if !ok || !ofObject(req) {
		return base.RoundTrip(req)
	}
	again := req.Body
	with := req.Clone(req.Context())
	for _, name := range []string{"Authorization", "X-Amz-Trailer", "X-Amz-Decoded-Content-Length"} {
		with.Header.Del(name)
	}
	if with.Header.Get("Content-Encoding") == "aws-chunked" {
		with.Header.Del("Content-Encoding")
	}
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
	n, err := x.End(resp, err)
	switch {
	case resp == nil:
		return nil, closeBody(req, err)
	case errors.As(err, new(*ResponseError)), errors.Is(err, ErrDeclined) && req.Method == http.MethodGet && resp.StatusCode < 300:
		return resp, closeBody(req, nil)
	case errors.Is(err, ErrDeclined), errors.Is(err, ErrUnproven):
		resp.Body.Close()
		if req.Method == http.MethodGet {
			return base.RoundTrip(req)
		}
		plain := req.Clone(req.Context())
		plain.Body = again
		return base.RoundTrip(plain)
	case err != nil:
		resp.Body.Close()
		return nil, closeBody(req, err)
	}
	if req.Method == http.MethodGet {
		resp.Body.Close()
		data := o.region.Bytes() // nil of a dma-buf
		resp.Body, resp.ContentLength = &body{data: data[:min(n, len(data))]}, int64(min(n, len(data)))
		resp.Header.Set("Content-Length", strconv.Itoa(min(n, len(data))))
	}
	return resp, closeBody(req, nil)
}

// closeBody closes the body of a request that was not sent, as a transport must.
func closeBody(req *http.Request, err error) error {
	if req.Body != nil {
		req.Body.Close()
	}
	return err
}

// ofObject reports whether a request is a GET or PUT of the data of an object or a part.
func ofObject(req *http.Request) bool {
	if req.Method != http.MethodGet && req.Method != http.MethodPut || req.Header.Get("X-Amz-Copy-Source") != "" {
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
