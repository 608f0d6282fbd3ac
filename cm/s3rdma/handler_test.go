package s3rdma

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strconv"
	"testing"
)

// objectHeaders are headers of an object that an error does not have.
var objectHeaders = []string{"Content-Encoding", "Cache-Control", "X-Amz-Checksum-Crc32", "Content-Disposition", "Expires", "Content-Language"}

// TestHandler has handlers that answer in many ways, right and wrong: what the client gets, and
// what is reported.
func TestHandler(t *testing.T) {
	r := newRig(t, InitiatorOptions{Networks: everywhere, Chunk: 4096, Depth: 2})
	const size = 20_000
	data := make([]byte, size)
	fill(data, 8)
	type test struct {
		method string
		handle http.HandlerFunc
		status int
		reply  string
		moved  int64
		fails  bool
	}
	ok := func(method string, handle http.HandlerFunc, status int, reply string, moved int64) test {
		return test{method, handle, status, reply, moved, status >= 500 || status == 400}
	}
	readAll := func(w http.ResponseWriter, r *http.Request) { io.Copy(io.Discard, r.Body) }
	for name, test := range map[string]test{
		"PUT":                  ok("PUT", readAll, 200, "200", size),
		"PUT 204":              ok("PUT", func(w http.ResponseWriter, r *http.Request) { readAll(w, r); w.WriteHeader(204) }, 204, "204", size),
		"PUT 201":              ok("PUT", func(w http.ResponseWriter, r *http.Request) { readAll(w, r); w.WriteHeader(201) }, 201, "200", size),
		"PUT by WriteTo":       ok("PUT", func(w http.ResponseWriter, r *http.Request) { r.Body.(io.WriterTo).WriteTo(io.Discard) }, 200, "200", size),
		"PUT, half is read":    ok("PUT", func(w http.ResponseWriter, r *http.Request) { io.CopyN(io.Discard, r.Body, size/2) }, 500, "", 0),
		"PUT, nothing is read": ok("PUT", func(http.ResponseWriter, *http.Request) {}, 500, "", 0),
		"PUT is refused":       {"PUT", func(w http.ResponseWriter, r *http.Request) { w.WriteHeader(412) }, 412, "", 0, false},
		"PUT is closed":        {"PUT", func(w http.ResponseWriter, r *http.Request) { r.Body.Close(); w.WriteHeader(412) }, 412, "", 0, false},
		"PUT, read and closed": ok("PUT", func(w http.ResponseWriter, r *http.Request) { readAll(w, r); r.Body.Close() }, 200, "200", size),
		"PUT, length":          {"PUT", func(w http.ResponseWriter, r *http.Request) { readAll(w, r); w.WriteHeader(int(r.ContentLength / 100)) }, 200, "200", size, false},
		"GET":                  ok("GET", func(w http.ResponseWriter, r *http.Request) { w.Write(data) }, 200, "200", size),
		"GET by ReadFrom":      ok("GET", func(w http.ResponseWriter, r *http.Request) { io.Copy(w, bytes.NewBuffer(data)) }, 200, "200", size),
		"GET 206":              ok("GET", func(w http.ResponseWriter, r *http.Request) { w.WriteHeader(206); w.Write(data[:5]) }, 206, "206", 5),
		"GET nothing":          ok("GET", func(http.ResponseWriter, *http.Request) {}, 200, "200", 0),
		"GET 404":              {"GET", http.NotFound, 404, "", 0, false},
		"GET 304":              {"GET", func(w http.ResponseWriter, r *http.Request) { w.WriteHeader(304) }, 304, "", 0, false},
		"GET, fewer than said": ok("GET", func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Length", "10")
			w.Write(data[:9])
		}, 500, "", 0),
		"GET, more than fits": ok("GET", func(w http.ResponseWriter, r *http.Request) { w.Write(data); w.Write(data[:1]) }, 400, "", 0),
		"GET, says that it will": ok("GET", func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Length", strconv.Itoa(size+1))
			w.Write(data)
		}, 400, "", 0),
		"PUT, headers": {"PUT", func(w http.ResponseWriter, r *http.Request) {
			readAll(w, r)
			if h := r.Header; h.Get("Content-Length") != strconv.Itoa(size) || h.Get("Expect") != "" || h.Get("Accept-Encoding") != "" {
				w.WriteHeader(400)
			}
		}, 200, "200", size, false},
		"GET, failure with headers": ok("GET", func(w http.ResponseWriter, r *http.Request) {
			for _, name := range objectHeaders {
				w.Header().Set(name, "x")
			}
			w.Write(make([]byte, size+1))
		}, 400, "", 0),
		"GET with informational": ok("GET", func(w http.ResponseWriter, r *http.Request) { w.WriteHeader(103); w.Write(data) }, 200, "200", size),
	} {
		t.Run(name, func(t *testing.T) {
			g := r.region(t, size)
			copy(g.Bytes(), data)
			_, token := r.offer(t, g, test.method)
			var reported []string
			h := r.initiator.Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if r.Header.Get(tokenHeader) != "" {
					t.Error("the handler sees the token")
				}
				w.Header().Set("ETag", `"e"`)
				test.handle(w, r)
			}), HandlerOptions{Report: func(_ *http.Request, n int64, err error) { reported = append(reported, fmt.Sprint(n, err != nil)) }})
			req := httptest.NewRequest(test.method, "/b/k", nil)
			for name, value := range map[string]string{tokenHeader: token.String(), "Content-Length": "0", "Expect": "100-continue", "Accept-Encoding": "gzip"} {
				req.Header.Set(name, value)
			}
			w := httptest.NewRecorder()
			h.ServeHTTP(w, req)
			for _, name := range objectHeaders {
				if test.fails && w.Header().Get(name) != "" {
					t.Errorf("%d has %s", w.Code, name)
				}
			}
			if w.Code != test.status || w.Header().Get(replyHeader) != test.reply {
				t.Errorf("%d %v, want %d with reply %q", w.Code, w.Header(), test.status, test.reply)
			}
			if test.reply != "" && (w.Header().Get(bytesHeader) != strconv.FormatInt(test.moved, 10) || w.Body.Len() > 0) {
				t.Errorf("%v and a body of %d bytes, want %d bytes by RDMA", w.Header(), w.Body.Len(), test.moved)
			}
			if (w.Header().Get("Etag") == "") != test.fails {
				t.Errorf("%d with ETag %q", w.Code, w.Header().Get("Etag"))
			}
			if len(reported) != 1 || test.status == 412 && reported[0] != "0 false" || test.reply != "" && reported[0] != fmt.Sprint(test.moved, false) || test.fails && reported[0][len(reported[0])-4:] != "true" {
				t.Errorf("reported: %v", reported)
			}
			if test.reply != "" && !bytes.Equal(g.Bytes()[:test.moved], data[:test.moved]) {
				t.Error("other data")
			}
		})
	}
	for url, reply := range map[string]string{"/b?list-type=2": "", "/b": "501", "/b/": "501", "/b/k?acl": ""} { // not of an object
		_, token := r.offer(t, r.region(t, 100), "GET")
		w := httptest.NewRecorder()
		r.initiator.Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { io.WriteString(w, "text") }), HandlerOptions{
			Report: func(_ *http.Request, _ int64, err error) {
				if reply == "" || !errors.Is(err, ErrDeclined) {
					t.Errorf("%s: %v is reported", url, err)
				}
			},
		}).ServeHTTP(w, get("GET", url, token))
		if w.Body.String() != "text" || w.Header().Get(replyHeader) != reply {
			t.Errorf("%s: %v %s", url, w.Header(), w.Body)
		}
	}
	_, offer := r.offer(t, r.region(t, 100), "PUT")
	w := httptest.NewRecorder() // the bucket may be in the name of the host: the handler must not store an empty object
	r.initiator.Handler(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { t.Error("the handler is called") }), HandlerOptions{}).ServeHTTP(w, get("PUT", "/k", offer))
	if w.Code != http.StatusNotImplemented || w.Header().Get(replyHeader) != "501" {
		t.Errorf("PUT without a bucket: %d %v", w.Code, w.Header())
	}
	var reported error
	report := HandlerOptions{Report: func(_ *http.Request, _ int64, err error) { reported = err }}
	foreign := httptest.NewRequest("GET", "/b/k", nil)
	foreign.Header.Set(tokenHeader, "rc:1:2:3:4")
	r.initiator.Handler(http.NotFoundHandler(), report).ServeHTTP(httptest.NewRecorder(), foreign)
	if !errors.Is(reported, ErrDeclined) || !errors.Is(reported, ErrForeignToken) {
		t.Errorf("of an offer of another protocol, %v is reported", reported)
	}
	for _, method := range []string{"GET", "PUT"} { // a panic leaves nothing behind
		g := r.region(t, size)
		_, token := r.offer(t, g, method)
		h := r.initiator.Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if method == "GET" {
				w.Write(data[:100])
			}
			panic(http.ErrAbortHandler)
		}), report)
		req := httptest.NewRequest(method, "/b/k", nil)
		req.Header.Set(tokenHeader, token.String())
		func() {
			defer func() {
				if recover() == nil {
					t.Error("the panic is lost")
				}
			}()
			h.ServeHTTP(httptest.NewRecorder(), req)
		}()
		if !errors.Is(reported, errPanic) {
			t.Errorf("%s: of a panic, %v is reported", method, reported)
		}
	}
	if n := len(r.initiator.slots); n != 0 || len(r.initiator.peers) != 0 {
		t.Errorf("%d transfers have not ended", n)
	}
}
