package s3rdma

import (
	"cmp"
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/netip"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
)

// Headers of answers.
const (
	replyHeader = "X-Amz-Rdma-Reply"
	bytesHeader = "X-Amz-Rdma-Bytes-Transferred"
)

// HandlerOptions are the options of [Initiator.Handler].
type HandlerOptions struct {
	// Report is told of each request with an offer, at its end: how many bytes went by RDMA, and
	// why it failed, or was declined (an error that matches [ErrDeclined]), or nil.
	Report func(r *http.Request, moved int64, err error)
}

// Handler returns a handler for GET and PUT of the data of objects and parts, whose paths are
// /BUCKET/KEY; offers with other paths are declined. Where a request offers memory, the body that
// next reads or writes goes by RDMA; next sees an ordinary request. A GET whose offer is declined
// goes to next, and the body has the data; a PUT is answered with 501, so that the client sends a
// body. All other requests go to next as they are.
//
// It must stand behind what authenticates requests, since the signature is of the request without a
// body. It checks that the signature, if there is one, covers the token. A handler of PUT must read
// the whole body, and not keep what it has read if that fails: whatever it answers then, the client
// gets RDMATransferFailed, and can send a body.
func (i *Initiator) Handler(next http.Handler, o HandlerOptions) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		text, err := offered(r.Header)
		if err == nil && text == "" || !ofObject(r) {
			next.ServeHTTP(w, r)
			return
		}
		s := &served{ResponseWriter: w, r: r, i: i}
		if err == nil {
			err = s.check(text)
		} else {
			err = badRequest(err)
		}
		defer func() { // also if next panics
			if o.Report != nil {
				o.Report(r, s.moved, cmp.Or(err, s.panicked))
			}
		}()
		switch {
		case err == nil:
			err = s.serve(next)
		case errors.As(err, new(*refusal)):
			answer(w, err)
		default:
			err = s.decline(next, err)
		}
	})
}

// hasKey reports whether a path has a bucket and a key.
func hasKey(path string) bool {
	bucket, key, _ := strings.Cut(strings.TrimPrefix(path, "/"), "/")
	return bucket != "" && key != ""
}

// refusal is an answer that refuses a request.
type refusal struct {
	status int
	code   string // as S3 has it
	err    error
}

func (e *refusal) Error() string { return "s3rdma: " + e.err.Error() }
func (e *refusal) Unwrap() error { return e.err }

// badRequest returns the refusal of a request whose offer makes no sense.
func badRequest(err error) error { return &refusal{http.StatusBadRequest, "InvalidRDMAToken", err} }

// tooSmall is S3's name, here, of the error that an object does not fit into the memory of a token.
const tooSmall = "RDMATokenTooSmall"

// errPanic says that a handler has not returned.
var errPanic = errors.New("s3rdma: the handler has panicked")

// served is a request with an offer, and its answer.
type served struct {
	http.ResponseWriter
	r     *http.Request
	i     *Initiator
	token Token
	from  netip.Addr // where the request comes from

	reader   *Reader // of a PUT
	panicked error   // until the handler has returned

	mu     sync.Mutex // handlers have goroutines that write after the end
	ended  bool       // the handler has returned
	writer *Writer    // of a GET, once the handler writes
	status int        // what the handler has said; 0 before
	length int64      // what the handler has announced, or -1
	plain  bool       // the handler's answer goes on as it is
	moved  int64      // bytes that went by RDMA
	err    error      // why there are no more
}

// check returns nil if the server takes an offer, a [*refusal] if it refuses the request, or why it
// declines.
func (s *served) check(text string) (err error) {
	if !hasKey(s.r.URL.Path) {
		return fmt.Errorf("the path is %.200q, want /BUCKET/KEY", s.r.URL.Path) // a bucket, or the host has its name
	}
	if s.token, err = ParseToken(text); errors.Is(err, ErrForeignToken) {
		return err
	} else if err != nil {
		return badRequest(err)
	}
	if err := signed(s.r); err != nil {
		return err
	}
	if s.r.ContentLength != 0 {
		return badRequest(errors.New("the request has a token and a body, want one of both"))
	}
	if s.token.Size == 0 {
		return errors.New("the token has 0 bytes")
	}
	from, err := netip.ParseAddrPort(s.r.RemoteAddr)
	if err != nil && len(s.i.o.Networks) == 0 {
		return fmt.Errorf("the address of the client, %q, is not known", s.r.RemoteAddr)
	}
	if s.from = from.Addr(); !s.i.allows(s.token, s.from) {
		return fmt.Errorf("the request of %s may not name memory at %s", s.from, s.token.GID.Addr().Unmap())
	}
	return nil
}

// signed returns a [*refusal] if a request has a signature that does not cover the token. Each list
// of headers must have it, since it is not known which one the authentication has looked at.
func signed(r *http.Request) error {
	q, err := url.ParseQuery(r.URL.RawQuery)
	if err != nil {
		return badRequest(fmt.Errorf("the query: %w", err))
	}
	var inQuery, inHeader []string
	for name, values := range q {
		if strings.EqualFold(name, "X-Amz-SignedHeaders") {
			inQuery = append(inQuery, values...)
		}
	}
	for _, value := range r.Header.Values("Authorization") {
		for part := range strings.FieldsFuncSeq(value, func(c rune) bool { return strings.ContainsRune(", \t", c) }) {
			if name, list, ok := strings.Cut(part, "="); ok && strings.EqualFold(name, "SignedHeaders") {
				inHeader = append(inHeader, list)
			}
		}
	}
	if len(inQuery) > 0 && r.Header.Get("Authorization") != "" {
		return badRequest(errors.New("the request has signatures in the query and in a header, want one of both"))
	}
	for _, list := range append(inQuery, inHeader...) {
		if !slices.ContainsFunc(strings.Split(list, ";"), func(name string) bool { return strings.EqualFold(name, tokenHeader) }) {
			return &refusal{http.StatusForbidden, "AccessDenied", errors.New("the signature does not cover x-amz-rdma-token")}
		}
	}
	return nil
}

// decline has the handler answer with the object in the body, or refuses a PUT so that the client
// sends one.
func (s *served) decline(next http.Handler, why error) error {
	why = fmt.Errorf("%w: %w", ErrDeclined, why)
	s.Header().Set(replyHeader, "501")
	if s.r.Method == http.MethodPut {
		answer(s.ResponseWriter, &refusal{http.StatusNotImplemented, "RDMANotSupported", errors.New("the offer is declined")})
		return why
	}
	s.panicked = errPanic
	next.ServeHTTP(s.ResponseWriter, s.r)
	s.panicked = nil
	return why
}

// answer writes an error as S3 does. Only that of a [*refusal] is for the client.
func answer(w http.ResponseWriter, err error) {
	e := &refusal{http.StatusInternalServerError, "RDMATransferFailed", errors.New("the data was not moved")} // the cause has the server's addresses and keys
	errors.As(err, &e)
	h := w.Header()
	for name := range h { // those of the object
		switch name {
		case "Content-Length", "Content-Range", "Content-Encoding", "Content-Disposition", "Content-Language", "Etag", "Last-Modified", "Accept-Ranges", "Cache-Control", "Expires", bytesHeader:
			delete(h, name)
		}
		if strings.HasPrefix(name, "X-Amz-Checksum-") {
			delete(h, name)
		}
	}
	h.Set("Content-Type", "application/xml")
	w.WriteHeader(e.status)
	text := struct {
		XMLName       xml.Name `xml:"Error"`
		Code, Message string
	}{Code: e.code, Message: e.err.Error()}
	out, _ := xml.Marshal(text) // strings always have a form
	io.WriteString(w, xml.Header)
	w.Write(out)
}

// serve has the handler answer the request, and moves its data.
func (s *served) serve(next http.Handler) (err error) {
	r := s.r.Clone(s.r.Context())
	for _, name := range []string{tokenHeader, "Accept-Encoding", "Expect"} { // what is moved is the object, not a form of it
		r.Header.Del(name)
	}
	if r.Method == http.MethodPut {
		if s.reader, err = s.i.reader(r.Context(), s.token, s.from); err != nil {
			return s.decline(next, err)
		}
		s.reader.after = http.ErrBodyReadAfterClose
		defer s.reader.Close()
		r.Body, r.ContentLength = s.reader, int64(s.token.Size)
		r.Header.Set("Content-Length", strconv.FormatInt(r.ContentLength, 10))
	}
	defer func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.ended = true
		if s.writer != nil {
			s.writer.Abort() // after a panic of the handler; else it has been closed
		}
	}()
	s.panicked = errPanic
	next.ServeHTTP(s, r)
	s.panicked = nil
	return s.end()
}

// WriteHeader keeps the status of the handler, unless it is one that has no data.
func (s *served) WriteHeader(status int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.head(status)
}

// head is WriteHeader, with the lock.
func (s *served) head(status int) {
	if s.ended || s.status != 0 || status < 200 { // informational ones are of no use here
		return
	}
	s.status, s.length = status, -1
	if n, err := strconv.ParseInt(s.Header().Get("Content-Length"), 10, 64); err == nil {
		s.length = n
	}
	var failed error
	if s.reader != nil {
		s.moved, failed = s.reader.progress()
	}
	switch {
	case s.reader != nil && status < 300:
		if s.moved != int64(s.token.Size) {
			s.err = cmp.Or(failed, fmt.Errorf("s3rdma: the handler has read %d of %d bytes", s.moved, s.token.Size))
			return
		}
		s.success(status)
	case failed != nil: // why the handler reports an error; the client can send a body
		s.err = failed
		return
	case s.reader != nil:
	case status == http.StatusOK || status == http.StatusPartialContent:
		if s.length != 0 {
			s.begin()
			return
		}
		s.success(status)
	}
	s.plain = true
	s.ResponseWriter.WriteHeader(status)
}

// begin begins to write to the client's memory.
func (s *served) begin() {
	if s.length > int64(s.token.Size) {
		s.err = &refusal{http.StatusBadRequest, tooSmall, fmt.Errorf("the object has %d bytes, and the memory of the token %d", s.length, s.token.Size)}
		return
	}
	if s.err = s.r.Context().Err(); s.err != nil {
		return
	}
	if s.writer, s.err = s.i.writer(s.r.Context(), s.token, s.from); s.err != nil {
		s.err = fmt.Errorf("%w: %w", ErrDeclined, s.err)
		s.plain = true
		s.Header().Set(replyHeader, "501")
		s.ResponseWriter.WriteHeader(s.status)
	}
}

// success sets the headers of data that went by RDMA.
func (s *served) success(status int) {
	h := s.Header()
	if status != http.StatusNoContent && status != http.StatusPartialContent { // clients know no others
		status = http.StatusOK
	}
	h.Set(replyHeader, strconv.Itoa(status))
	h.Set(bytesHeader, strconv.FormatInt(s.moved, 10))
}

// Write takes data of the handler.
func (s *served) Write(p []byte) (n int, err error) {
	to, err := s.to()
	if err != nil {
		return 0, err
	}
	n, err = to.Write(p)
	return n, s.wrote(err)
}

// ReadFrom takes data of the handler without a copy.
func (s *served) ReadFrom(r io.Reader) (n int64, err error) {
	to, err := s.to()
	if err != nil {
		return 0, err
	}
	n, err = io.Copy(to, r)
	return n, s.wrote(err)
}

// to returns where data of the handler goes.
func (s *served) to() (io.Writer, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.head(http.StatusOK)
	switch {
	case s.ended:
		return nil, errDone
	case s.plain:
		return s.ResponseWriter, nil
	case s.err != nil:
		return nil, s.err
	}
	return s.writer, nil
}

// wrote keeps why there is no more data, and returns it.
func (s *served) wrote(err error) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.plain {
		s.err = cmp.Or(s.err, err)
	}
	return err
}

// end sends the answer, if that has not been done.
func (s *served) end() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.status == 0 {
		s.length = 0
		s.head(http.StatusOK)
	}
	s.ended = true
	if s.plain {
		return s.err
	}
	if s.writer != nil {
		if s.err == nil {
			s.err = s.writer.Close()
		} else {
			s.writer.Abort() // before the answer: the client may use its memory then
		}
		s.moved = s.writer.progress()
		if s.err == nil && s.length >= 0 && s.moved != s.length {
			s.err = fmt.Errorf("s3rdma: the handler has written %d of %d bytes", s.moved, s.length)
		}
	}
	if errors.Is(s.err, errTooLong) {
		s.err = &refusal{http.StatusBadRequest, tooSmall, s.err}
	}
	if s.err != nil {
		answer(s.ResponseWriter, s.err)
		return s.err
	}
	s.success(s.status)
	s.Header().Set("Content-Length", "0")
	s.ResponseWriter.WriteHeader(s.status)
	return nil
}
