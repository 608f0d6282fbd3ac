package s3rdma

import (
	"cmp"
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/netip"
	"strconv"
	"strings"
)

// Headers of answers.
const (
	replyHeader = "X-Amz-Rdma-Reply"
	bytesHeader = "X-Amz-Rdma-Bytes-Transferred"
)

// Handler returns a handler for GET and PUT of objects and parts. Where a request offers memory, the body that next
// reads or writes goes by RDMA; next sees an ordinary request. Other requests, and offers that the server declines,
// go to next as they are.
//
// It must stand behind what authenticates requests, since the signature is of the request without a body. It checks
// that the signature, if there is one, covers the token. A handler of PUT must read the whole body, and not keep what
// it has read if that fails: the answer is an error then. report, unless it is nil, is told of each request with an
// offer: how many bytes went by RDMA, and why it was declined or failed, or nil.
func (i *Initiator) Handler(next http.Handler, report func(r *http.Request, moved int64, err error)) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		text, err := offered(r.Header)
		if err == nil && text == "" || r.Method != http.MethodGet && r.Method != http.MethodPut || r.Header.Get("X-Amz-Copy-Source") != "" {
			next.ServeHTTP(w, r)
			return
		}
		s := &served{ResponseWriter: w, r: r, i: i}
		if err == nil {
			err = s.check(text)
		}
		switch {
		case err == nil:
			err = s.serve(next)
		case errors.As(err, new(*refusal)):
			answer(w, err)
		default:
			err = s.decline(next, err)
		}
		if report != nil {
			report(r, s.moved, err)
		}
	})
}

// refusal is an answer that refuses a request.
type refusal struct {
	status int
	code   string // as S3 has it
	err    error
}

func (e *refusal) Error() string { return "s3rdma: " + e.err.Error() }
func (e *refusal) Unwrap() error { return e.err }

// errDeclined says that the server does not move the data by RDMA.
var errDeclined = errors.New("the offer is declined")

// served is a request with an offer, and its answer.
type served struct {
	http.ResponseWriter
	r     *http.Request
	i     *Initiator
	token Token

	reader *Reader // of a PUT
	writer *Writer // of a GET, once the handler writes
	status int     // what the handler has said; 0 before
	length int64   // what the handler has announced, or -1
	plain  bool    // the handler's answer goes on as it is
	moved  int64   // bytes that went by RDMA
	err    error   // why there are no more
}

// check returns nil if the server takes an offer, a [*refusal] if it refuses the request, or why it declines.
func (s *served) check(text string) (err error) {
	bad := func(err error) error { return &refusal{http.StatusBadRequest, "InvalidRDMAToken", err} }
	if s.token, err = ParseToken(text); errors.Is(err, ErrForeignToken) {
		return err
	} else if err != nil {
		return bad(err)
	}
	if !signed(s.r) {
		return &refusal{http.StatusForbidden, "AccessDenied", errors.New("the signature does not cover x-amz-rdma-token")}
	}
	if s.r.ContentLength != 0 {
		return bad(errors.New("the request has a token and a body, want one of both"))
	}
	if s.token.Size == 0 {
		return fmt.Errorf("%w: the token has 0 bytes", errDeclined)
	}
	from, err := netip.ParseAddrPort(s.r.RemoteAddr)
	if err != nil && len(s.i.o.Networks) == 0 {
		return fmt.Errorf("%w: the address of the client, %q, is not known", errDeclined, s.r.RemoteAddr)
	}
	if !s.i.allows(s.token, from.Addr()) {
		return fmt.Errorf("%w: the request of %s may not name memory at %s", errDeclined, from.Addr(), s.token.GID.Addr().Unmap())
	}
	return nil
}

// signed reports whether the signature of a request, if it has one, covers the token.
func signed(r *http.Request) bool {
	list := r.URL.Query().Get("X-Amz-SignedHeaders")
	for part := range strings.FieldsFuncSeq(r.Header.Get("Authorization"), func(c rune) bool { return c == ',' || c == ' ' }) {
		if l, ok := strings.CutPrefix(part, "SignedHeaders="); ok {
			list = l
		}
	}
	for name := range strings.SplitSeq(list, ";") {
		if list == "" || strings.EqualFold(name, tokenHeader) {
			return true
		}
	}
	return false
}

// decline has the handler answer with the object in the body, or refuses a PUT so that the client sends one.
func (s *served) decline(next http.Handler, why error) error {
	s.Header().Set(replyHeader, "501")
	if s.r.Method == http.MethodPut {
		answer(s.ResponseWriter, &refusal{http.StatusNotImplemented, "RDMANotSupported", errDeclined})
		return why
	}
	next.ServeHTTP(s.ResponseWriter, s.r)
	return why
}

// answer writes an error as S3 does. Only that of a [*refusal] is for the client.
func answer(w http.ResponseWriter, err error) {
	e := &refusal{http.StatusInternalServerError, "RDMATransferFailed", errors.New("the data was not moved")} // the cause has the server's addresses and keys
	errors.As(err, &e)
	h := w.Header()
	for _, name := range []string{"Content-Length", "Content-Range", "Etag", "Last-Modified", "Accept-Ranges", bytesHeader} {
		h.Del(name)
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
	r.Header.Del(tokenHeader)
	if r.Method == http.MethodPut {
		if s.reader, err = s.i.Reader(r.Context(), s.token); err != nil {
			return s.decline(next, err)
		}
		defer s.reader.Close()
		r.Body, r.ContentLength = s.reader, int64(s.token.Size)
	}
	defer func() {
		if s.writer != nil {
			s.writer.Abort() // after a panic of the handler; else it has been closed
		}
	}()
	next.ServeHTTP(s, r)
	return s.end()
}

// WriteHeader keeps the status of the handler, unless it is one that has no data.
func (s *served) WriteHeader(status int) {
	if s.status != 0 || status < 200 { // informational ones are of no use here
		return
	}
	s.status, s.length = status, -1
	if n, err := strconv.ParseInt(s.Header().Get("Content-Length"), 10, 64); err == nil {
		s.length = n
	}
	switch {
	case s.reader != nil && status < 300:
		if s.moved = s.reader.taken; s.moved != int64(s.token.Size) {
			s.err = cmp.Or(s.reader.x.err, fmt.Errorf("s3rdma: the handler has read %d of %d bytes", s.moved, s.token.Size))
			return
		}
		s.success(status)
	case s.reader != nil:
		s.err = s.reader.x.err // why the handler reports an error, perhaps
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
		s.err = &refusal{http.StatusBadRequest, "InvalidRDMAToken", fmt.Errorf("the object has %d bytes, and the memory of the token %d", s.length, s.token.Size)}
		return
	}
	if s.err = s.r.Context().Err(); s.err != nil {
		return
	}
	if s.writer, s.err = s.i.Writer(s.r.Context(), s.token); s.err != nil {
		s.plain = true
		s.Header().Set(replyHeader, "501")
		s.ResponseWriter.WriteHeader(s.status)
	}
}

// success sets the headers of data that went by RDMA.
func (s *served) success(status int) {
	h := s.Header()
	h.Set(replyHeader, strconv.Itoa(status))
	h.Set(bytesHeader, strconv.FormatInt(s.moved, 10))
}

// Write takes data of the handler.
func (s *served) Write(p []byte) (int, error) {
	s.WriteHeader(http.StatusOK)
	switch {
	case s.plain:
		return s.ResponseWriter.Write(p)
	case s.err != nil:
		return 0, s.err
	}
	n, err := s.writer.Write(p)
	s.err = err
	return n, err
}

// ReadFrom takes data of the handler without a copy.
func (s *served) ReadFrom(r io.Reader) (int64, error) {
	s.WriteHeader(http.StatusOK)
	switch {
	case s.plain:
		return io.Copy(s.ResponseWriter, r)
	case s.err != nil:
		return 0, s.err
	}
	n, err := s.writer.ReadFrom(r)
	s.err = err
	return n, err
}

// end sends the answer, if that has not been done.
func (s *served) end() error {
	if s.status == 0 {
		s.length = 0
		s.WriteHeader(http.StatusOK)
	}
	if s.plain {
		return s.err
	}
	if s.writer != nil {
		if s.err == nil {
			s.err = s.writer.Close()
		}
		s.moved = s.writer.x.moved
		if s.err == nil && s.length >= 0 && s.moved != s.length {
			s.err = fmt.Errorf("s3rdma: the handler has written %d of %d bytes", s.moved, s.length)
		}
	}
	if errors.Is(s.err, errTooLong) {
		s.err = &refusal{http.StatusBadRequest, "InvalidRDMAToken", s.err}
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
