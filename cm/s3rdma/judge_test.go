package s3rdma

import (
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"syscall"
	"testing"
)

// TestJudge ends exchanges of 1000 bytes with answers of servers, honest and not: success is
// reported only with a proof.
func TestJudge(t *testing.T) {
	r := newRig(t, InitiatorOptions{})
	g := r.region(t, 1000)
	type h = map[string]string
	for name, test := range map[string]struct {
		method string
		send   h
		status int
		answer h
		n      int
		err    error // syscall.EPROTO is an answer that makes no sense
	}{
		"PUT":                      {method: "PUT", status: 200, answer: h{replyHeader: "200", bytesHeader: "1000", "ETag": `"x"`}, n: 1000},
		"PUT 204":                  {method: "PUT", status: 204, answer: h{replyHeader: "204", bytesHeader: "1000"}, n: 1000},
		"PUT without bytes":        {method: "PUT", status: 200, answer: h{replyHeader: "200", "ETag": `"x"`}, err: ErrUnproven},
		"PUT without reply":        {method: "PUT", status: 200, answer: h{"ETag": `"x"`}, err: ErrUnproven},
		"PUT bytes without reply":  {method: "PUT", status: 200, answer: h{bytesHeader: "1000"}, err: ErrUnproven},
		"PUT empty object":         {method: "PUT", status: 200, answer: h{"ETag": emptyETag}, err: ErrDeclined},
		"PUT fewer":                {method: "PUT", status: 200, answer: h{replyHeader: "200", bytesHeader: "999"}, err: syscall.EPROTO},
		"PUT more":                 {method: "PUT", status: 200, answer: h{replyHeader: "200", bytesHeader: "1001"}, err: syscall.EPROTO},
		"PUT sum":                  {method: "PUT", send: h{"X-Amz-Checksum-Crc64nvme": "AAAAAAAAAAA="}, status: 200, answer: h{"X-Amz-Checksum-Crc64nvme": "AAAAAAAAAAA="}, n: 1000},
		"PUT empty object, sum":    {method: "PUT", send: h{"X-Amz-Checksum-Crc64nvme": "AAAAAAAAAAA="}, status: 200, answer: h{replyHeader: "200", "X-Amz-Checksum-Crc64nvme": "AAAAAAAAAAA=", "ETag": emptyETag}, err: ErrDeclined},
		"PUT sum without value":    {method: "PUT", send: h{"X-Amz-Checksum-Crc32": ""}, status: 200, answer: h{"ETag": `"x"`}, err: ErrUnproven},
		"PUT type of a sum":        {method: "PUT", send: h{"X-Amz-Checksum-Type": "FULL_OBJECT"}, status: 200, answer: h{"X-Amz-Checksum-Type": "FULL_OBJECT", "ETag": `"x"`}, err: ErrUnproven},
		"PUT other sum":            {method: "PUT", send: h{"X-Amz-Checksum-Crc64nvme": "AAAAAAAAAAA="}, status: 200, answer: h{"X-Amz-Checksum-Crc64nvme": "AAAAAAAAAAE="}, err: ErrUnproven},
		"PUT declined by reply":    {method: "PUT", status: 200, answer: h{replyHeader: "501"}, err: ErrDeclined},
		"PUT declined by status":   {method: "PUT", status: 501, err: ErrDeclined},
		"PUT reply of others":      {method: "PUT", status: 200, answer: h{replyHeader: "200:" + strings.Repeat("0", 88), bytesHeader: "1000"}, err: syscall.EPROTO},
		"PUT reply 500":            {method: "PUT", status: 200, answer: h{replyHeader: "500", bytesHeader: "1000"}, err: syscall.EPROTO},
		"PUT bytes not a number":   {method: "PUT", status: 200, answer: h{replyHeader: "200", bytesHeader: "-1"}, err: syscall.EPROTO},
		"GET":                      {method: "GET", status: 200, answer: h{replyHeader: "200", bytesHeader: "1000"}, n: 1000},
		"GET fewer":                {method: "GET", status: 200, answer: h{replyHeader: "200", bytesHeader: "10"}, n: 10},
		"GET nothing":              {method: "GET", status: 200, answer: h{replyHeader: "200", bytesHeader: "0"}},
		"GET more":                 {method: "GET", status: 200, answer: h{replyHeader: "200", bytesHeader: "1001"}, err: syscall.EPROTO},
		"GET without bytes":        {method: "GET", status: 200, answer: h{replyHeader: "200"}, err: syscall.EPROTO},
		"GET without reply":        {method: "GET", status: 200, err: ErrDeclined},
		"GET bytes without reply":  {method: "GET", status: 200, answer: h{bytesHeader: "1000"}, err: syscall.EPROTO},
		"GET 204":                  {method: "GET", status: 204, answer: h{replyHeader: "200", bytesHeader: "10"}, err: syscall.EPROTO},
		"GET declined":             {method: "GET", status: 206, answer: h{replyHeader: "501"}, err: ErrDeclined},
		"GET range":                {method: "GET", send: h{"Range": "bytes=5-104"}, status: 206, answer: h{replyHeader: "206", bytesHeader: "100", "Content-Range": "bytes 5-104/2000"}, n: 100},
		"GET range, chunked 200":   {method: "GET", send: h{"Range": "bytes=5-104"}, status: 200, answer: h{replyHeader: "206", bytesHeader: "100", "Content-Range": "bytes 5-104/2000"}, n: 100},
		"GET range, end of object": {method: "GET", send: h{"Range": "bytes=5-104"}, status: 206, answer: h{replyHeader: "206", bytesHeader: "20", "Content-Range": "bytes 5-24/25"}, n: 20},
		"GET open range":           {method: "GET", send: h{"Range": "bytes=5-"}, status: 206, answer: h{replyHeader: "206", bytesHeader: "20", "Content-Range": "bytes 5-24/25"}, n: 20},
		"GET other range":          {method: "GET", send: h{"Range": "bytes=5-104"}, status: 206, answer: h{replyHeader: "206", bytesHeader: "100", "Content-Range": "bytes 0-99/2000"}, err: syscall.EPROTO},
		"GET open range, other":    {method: "GET", send: h{"Range": "bytes=5-"}, status: 206, answer: h{replyHeader: "206", bytesHeader: "20", "Content-Range": "bytes 0-19/25"}, err: syscall.EPROTO},
		"GET longer range":         {method: "GET", send: h{"Range": "bytes=5-104"}, status: 206, answer: h{replyHeader: "206", bytesHeader: "101", "Content-Range": "bytes 5-105/2000"}, err: syscall.EPROTO},
		"GET range, bytes differ":  {method: "GET", send: h{"Range": "bytes=5-104"}, status: 206, answer: h{replyHeader: "206", bytesHeader: "99", "Content-Range": "bytes 5-104/2000"}, err: syscall.EPROTO},
		"GET range, whole object":  {method: "GET", send: h{"Range": "bytes=5-104"}, status: 200, answer: h{replyHeader: "200", bytesHeader: "100"}, err: syscall.EPROTO},
	} {
		t.Run(name, func(t *testing.T) {
			req := httptest.NewRequest(test.method, "/b/k", nil)
			for k, v := range test.send {
				req.Header.Set(k, v)
			}
			x, err := g.Offer(t.Context(), req, 0, 1000)
			if err != nil {
				t.Fatal(err)
			}
			resp := &http.Response{StatusCode: test.status, Header: http.Header{}, Body: io.NopCloser(strings.NewReader(""))}
			for k, v := range test.answer {
				resp.Header.Set(k, v)
			}
			if n, err := x.End(resp, nil); n != test.n || !errors.Is(err, test.err) {
				t.Errorf("End returns %d, %v, want %d, %v", n, err, test.n, test.err)
			}
		})
	}
	for _, test := range []struct {
		method, code string
		status       int
		declined     bool
	}{
		{"PUT", "BadDigest", 400, true}, {"PUT", "InvalidDigest", 400, true}, {"PUT", "XAmzContentChecksumMismatch", 400, true}, {"PUT", "IncompleteBody", 400, true},
		{"PUT", "InvalidRequest", 400, true}, {"GET", "InvalidRequest", 400, false}, {"PUT", "BadDigest", 403, false}, {"PUT", "AccessDenied", 403, false},
		{"PUT", "RDMATransferFailed", 500, true}, {"GET", "S3RdmaIoError", 500, true}, {"GET", "InvalidRDMAToken", 400, true}, {"PUT", "S3InvalidRdmaToken", 400, true},
		{"GET", "InternalError", 500, false},
	} {
		req := httptest.NewRequest(test.method, "/b/k", nil)
		x, err := g.Offer(t.Context(), req, 0, 1000)
		if err != nil {
			t.Fatal(err)
		}
		text := "<Error><Code>" + test.code + "</Code></Error>"
		resp := &http.Response{StatusCode: test.status, Body: io.NopCloser(strings.NewReader(text))}
		_, err = x.End(resp, nil)
		if e, ok := errors.AsType[*ResponseError](err); !ok || e.Code != test.code || errors.Is(err, ErrDeclined) != test.declined {
			t.Errorf("%s %d %s: End returns %v", test.method, test.status, test.code, err)
		}
		if got, err := io.ReadAll(resp.Body); string(got) != text || err != nil {
			t.Errorf("%s: the body has %q afterwards, %v", test.code, got, err)
		}
	}
	x, err := g.Offer(t.Context(), httptest.NewRequest("GET", "/b/k", nil), 0, 1000)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := x.End(nil, nil); err == nil {
		t.Error("End without an answer and an error returns none")
	}
	long := &ResponseError{Status: 400, Code: strings.Repeat("\n", 1000), Message: strings.Repeat("\n", 10000)}
	if s := long.Error(); len(s) > 1500 || strings.Contains(s, "\n") {
		t.Errorf("an error of %d bytes: %s", len(s), s)
	}
	req := httptest.NewRequest("GET", "/b/k", nil)
	x, err = g.Offer(t.Context(), req, 0, 1000)
	if err != nil {
		t.Fatal(err)
	}
	_, err = x.End(&http.Response{StatusCode: 404, Body: io.NopCloser(strings.NewReader("<Error><Code>NoSuchKey</Code><Message>gone</Message></Error>"))}, nil)
	if e, ok := errors.AsType[*ResponseError](err); !ok || *e != (ResponseError{404, "NoSuchKey", "gone"}) || err.Error() != `s3rdma: the server answers 404 Not Found NoSuchKey: "gone"` {
		t.Errorf("End returns %v", err)
	}
}
