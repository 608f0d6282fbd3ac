package s3rdma

import (
	"bytes"
	"context"
	"crypto/sha1"
	"crypto/sha256"
	"encoding/base64"
	"encoding/xml"
	"errors"
	"fmt"
	"hash"
	"hash/crc32"
	"hash/crc64"
	"io"
	"net/http"
	"net/http/httptrace"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"

	"github.com/goverbs/goverbs/uverbs"
)

// Errors of [Exchange.End], which say what to do next.
var (
	// ErrDeclined says that the server has not moved the data. After a GET with status 200 or 206
	// the object is in the body of the response; otherwise repeat the request without an offer.
	ErrDeclined = errors.New("s3rdma: the server does not move the data by RDMA")

	// ErrUnproven says that the server reports success, and nothing proves it. After a PUT it may
	// have stored an empty object: a HEAD tells whether the object has the size and the ETag of the
	// response. After a GET, net/http has sent the request more than once, and two servers may have
	// written: repeat it without an offer.
	ErrUnproven = errors.New("s3rdma: the server reports success, but does not prove it")
)

var (
	errIgnored  = fmt.Errorf("%w, and has perhaps not seen the offer", ErrDeclined)
	errRepeated = fmt.Errorf("%w: the request was sent more than once", ErrUnproven)
)

// ResponseError is an answer of the server that reports an error.
type ResponseError struct {
	Status  int    // Status is the status of HTTP.
	Code    string // Code is S3's name of the error, or empty.
	Message string // Message is the server's text, or empty.
}

// Error returns the status, the code and the message, each with a limit.
func (e *ResponseError) Error() string {
	code := fmt.Sprintf("%.64q", e.Code)
	if strings.Trim(e.Code, "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789") == "" && len(e.Code) <= 64 {
		code = e.Code
	}
	return strings.TrimSuffix(fmt.Sprintf("s3rdma: the server answers %d %s %s: %.500q", e.Status, http.StatusText(e.Status), code, e.Message), `: ""`)
}

// Is reports whether target is [io.ErrShortBuffer], and the object does not fit into the memory of
// the offer.
func (e *ResponseError) Is(target error) bool {
	return target == io.ErrShortBuffer && e.Code == tooSmall
}

// Exchange is a request that offers a region, until its answer has come.
type Exchange struct {
	req  *http.Request
	n    int
	loan *loan
	sent atomic.Int32 // how often net/http has sent the request
}

// Offer makes a GET or PUT offer n bytes of the region from an offset: the server writes the object
// there, or reads it from there. Call it before the request is signed; it sets x-amz-rdma-token,
// which the signature must cover, takes the body of a PUT away and all headers that describe it,
// and has a GET ask for no compression. The server has access until [Exchange.End] or the end of
// the context, which should have a deadline. Do not follow redirects: the token would go to another
// host.
func (r *Region) Offer(ctx context.Context, req *http.Request, offset, n int) (*Exchange, error) {
	var access uverbs.Access
	switch req.Method {
	case http.MethodGet:
		access = uverbs.AccessRemoteWrite
	case http.MethodPut:
		access = uverbs.AccessRemoteRead
	default:
		return nil, fmt.Errorf("s3rdma: the method is %q, want GET or PUT", req.Method)
	}
	l, err := r.lend(ctx, access, offset, n)
	if err != nil {
		return nil, err
	}
	req.Header.Set(tokenHeader, l.token.String())
	x := &Exchange{req: req, n: n, loan: l}
	*req = *req.WithContext(httptrace.WithClientTrace(req.Context(), &httptrace.ClientTrace{WroteHeaders: func() { x.sent.Add(1) }}))
	req.Header.Set("X-Amz-Content-Sha256", "UNSIGNED-PAYLOAD")
	if req.Method == http.MethodPut {
		req.Body, req.GetBody, req.ContentLength, req.TransferEncoding = http.NoBody, nil, 0, nil
		withoutBody(req.Header)
	} else {
		plain(req.Header)
	}
	return x, nil
}

// plain makes a request ask for the object, not for a compressed form of it.
func plain(h http.Header) {
	if h.Get("Accept-Encoding") == "" {
		h.Set("Accept-Encoding", "identity")
	}
}

// withoutBody removes headers that are of the form of a body.
func withoutBody(h http.Header) {
	if h.Get("X-Amz-Trailer") != "" { // the sum that this announces does not come
		h.Del("X-Amz-Sdk-Checksum-Algorithm")
	}
	for _, name := range []string{"Content-Md5", "Content-Length", "Expect", "X-Amz-Trailer", "X-Amz-Decoded-Content-Length"} {
		h.Del(name)
	}
	var encodings []string
	for _, value := range h.Values("Content-Encoding") {
		for e := range strings.SplitSeq(value, ",") {
			if e = strings.TrimSpace(e); e != "" && !strings.EqualFold(e, "aws-chunked") {
				encodings = append(encodings, e)
			}
		}
	}
	h.Del("Content-Encoding")
	if len(encodings) > 0 {
		h.Set("Content-Encoding", strings.Join(encodings, ", "))
	}
}

// End ends the exchange with what the request returned. It takes the key of the region back first,
// so that no server reaches the memory any more, and then returns how many bytes the server has
// proved to have moved, or why there are none: [ErrDeclined], [ErrUnproven], a [*ResponseError], or
// that the answer makes no sense. It does not close the body, which can still be read.
func (x *Exchange) End(resp *http.Response, err error) (int, error) { return x.end(resp, err, false) }

// end is End. If hold is set, nobody may use the region until the loan is released.
func (x *Exchange) end(resp *http.Response, err error, hold bool) (int, error) {
	if late := x.loan.end(hold); late != nil {
		return 0, errors.Join(late, err)
	}
	if err != nil {
		return 0, err
	}
	if resp == nil {
		return 0, errors.New("s3rdma: there is neither an answer nor an error")
	}
	reply, err := one(resp, replyHeader)
	switch {
	case err != nil:
		return 0, err
	case reply == "501", resp.StatusCode == http.StatusNotImplemented:
		return 0, ErrDeclined
	case resp.StatusCode < 200 || resp.StatusCode > 299:
		return 0, x.refused(resp, reply)
	case x.req.Method == http.MethodPut:
		return x.judgePut(resp, reply)
	}
	return x.judgeGet(resp, reply)
}

// refused judges an answer that reports an error: some say that the server cannot move the data, or
// that it has looked for a body.
func (x *Exchange) refused(resp *http.Response, reply string) error {
	e := responseError(resp)
	switch e.Code {
	case "RDMATransferFailed", "S3RdmaIoError", "InvalidRDMAToken", "S3InvalidRdmaToken":
		return fmt.Errorf("%w: %w", errIgnored, e)
	case "BadDigest", "InvalidDigest", "XAmzContentChecksumMismatch", "IncompleteBody", "InvalidRequest":
		if x.req.Method == http.MethodPut && reply == "" && e.Status == http.StatusBadRequest {
			return fmt.Errorf("%w: %w", errIgnored, e)
		}
	}
	return e
}

// errAnswer is the beginning of errors about answers that make no sense.
func errAnswer(format string, args ...any) error {
	return fmt.Errorf("s3rdma: "+format+": %w", append(args, syscall.EPROTO)...)
}

// emptyETag is the ETag of an object without data.
const emptyETag = `"d41d8cd98f00b204e9800998ecf8427e"`

// judgePut judges an answer to a PUT that reports success.
func (x *Exchange) judgePut(resp *http.Response, reply string) (int, error) {
	moved, known, err := bytesMoved(resp)
	switch {
	case err != nil:
		return 0, err
	case reply != "" && reply != "200" && reply != "204":
		return 0, errAnswer("the answer to a PUT has %s %.100q, want 200, 204 or 501", strings.ToLower(replyHeader), reply)
	case known && reply != "" && moved != int64(x.n):
		return 0, errAnswer("the server has read %d of %d bytes", moved, x.n)
	case known && reply != "":
		return x.n, nil
	case resp.Header.Get("Etag") == emptyETag:
		return 0, errIgnored // it has stored an empty object
	}
	for name := range sums {
		if sent := x.req.Header.Get(name); sent != "" && resp.Header.Get(name) == sent {
			return x.n, nil // the server has the data, or it could not know the sum of it
		}
	}
	return 0, ErrUnproven
}

// sums are the headers that have a sum of the data, and what computes it.
var sums = map[string]func() hash.Hash{
	"X-Amz-Checksum-Crc32":     func() hash.Hash { return crc32.NewIEEE() },
	"X-Amz-Checksum-Crc32c":    func() hash.Hash { return crc32.New(crc32.MakeTable(crc32.Castagnoli)) },
	"X-Amz-Checksum-Crc64nvme": func() hash.Hash { return crc64.New(nvme) },
	"X-Amz-Checksum-Sha1":      sha1.New,
	"X-Amz-Checksum-Sha256":    sha256.New,
}

// nvme is the table of CRC-64/NVME.
var nvme = crc64.MakeTable(0x9a6c9329ac4bc9b5)

// check compares the first n bytes of a region with the sum of the object that an answer has, and
// reports whether it has one.
func (r *Region) check(h http.Header, n int) (bool, error) {
	for name, new := range sums {
		want := h.Get(name)
		if want == "" || strings.Contains(want, "-") || strings.EqualFold(h.Get("X-Amz-Checksum-Type"), "COMPOSITE") { // a sum of sums of parts
			continue
		}
		memory, err := r.hold()
		if err != nil {
			return false, err
		}
		defer r.unhold()
		sum := new()
		sum.Write(memory[:n])
		if got := base64.StdEncoding.EncodeToString(sum.Sum(nil)); got != want {
			return false, fmt.Errorf("s3rdma: the data has the %s %s, and the object %.100q: %w", strings.ToLower(name), got, want, syscall.EBADMSG)
		}
		return true, nil
	}
	return false, nil
}

// judgeGet judges an answer to a GET that reports success.
func (x *Exchange) judgeGet(resp *http.Response, reply string) (int, error) {
	moved, known, err := bytesMoved(resp)
	asked := x.req.Header.Get("Range")
	switch {
	case err != nil:
		return 0, err
	case resp.StatusCode != http.StatusOK && resp.StatusCode != http.StatusPartialContent:
		return 0, errAnswer("the answer to a GET has status %d, want 200 or 206", resp.StatusCode)
	case reply == "" && known:
		return 0, errAnswer("the answer has %s, but no %s", strings.ToLower(bytesHeader), strings.ToLower(replyHeader))
	case reply == "":
		return 0, errIgnored // the object is in the body
	case x.sent.Load() > 1:
		return 0, errRepeated
	case reply != "200" && reply != "206":
		return 0, errAnswer("the answer to a GET has %s %.100q, want 200, 206 or 501", strings.ToLower(replyHeader), reply)
	case !known:
		return 0, errAnswer("the answer says that the data was moved, but has no %s", strings.ToLower(bytesHeader))
	case moved > int64(x.n):
		return 0, errAnswer("the server has written %d bytes, and the offer was of %d", moved, x.n)
	case asked != "" && reply != "206":
		return 0, errAnswer("the request is for %q, and the answer is the whole object", asked)
	}
	if asked != "" {
		if err := checkRange(asked, resp.Header.Get("Content-Range"), moved); err != nil {
			return 0, err
		}
	}
	return int(moved), nil
}

// checkRange returns an error if an answer with n bytes has another range than the request.
func checkRange(asked, got string, n int64) error {
	span, _, _ := strings.Cut(strings.TrimPrefix(got, "bytes "), "/")
	from, to := parseRange(span)
	first, last := parseRange(strings.TrimPrefix(asked, "bytes="))
	switch {
	case from < 0 || to-from+1 != n:
		return errAnswer("the answer has %d bytes, and Content-Range %.100q", n, got)
	case first >= 0 && (from != first || last >= 0 && to > last):
		return errAnswer("the request is for %q, and the answer has Content-Range %.100q", asked, got)
	}
	return nil
}

// parseRange parses the numbers on both sides of a hyphen. One that is not there, or is not a
// number, is -1.
func parseRange(s string) (first, last int64) {
	a, b, _ := strings.Cut(s, "-")
	number := func(s string) int64 {
		if n, err := strconv.ParseInt(s, 10, 64); err == nil {
			return n
		}
		return -1
	}
	return number(a), number(b)
}

// one returns the value of a header of an answer, or "" without one.
func one(resp *http.Response, name string) (string, error) {
	switch v := resp.Header.Values(name); len(v) {
	case 0:
		return "", nil
	case 1:
		return v[0], nil
	default:
		return "", errAnswer("the answer has %d headers %s, want 1", len(v), strings.ToLower(name))
	}
}

// bytesMoved returns how many bytes the server says to have moved, if it does.
func bytesMoved(resp *http.Response) (n int64, known bool, err error) {
	s, err := one(resp, bytesHeader)
	if s == "" || err != nil {
		return 0, false, err
	}
	v, err := strconv.ParseUint(s, 10, 32)
	if err != nil {
		return 0, false, errAnswer("the answer has %s %.100q, want a number of bytes", strings.ToLower(bytesHeader), s)
	}
	return int64(v), true, nil
}

// responseError reads the error of a response, and puts back what it has read.
func responseError(resp *http.Response) *ResponseError {
	e := &ResponseError{Status: resp.StatusCode}
	body := resp.Body
	read, _ := io.ReadAll(io.LimitReader(body, 16<<10)) // what comes is enough, or there is no code
	resp.Body = struct {
		io.Reader
		io.Closer
	}{io.MultiReader(bytes.NewReader(read), body), body}
	var text struct{ Code, Message string }
	if xml.Unmarshal(read, &text) == nil {
		e.Code, e.Message = text.Code, text.Message
	}
	return e
}
