package s3rdma

import (
	"errors"
	"net/http"
	"sync"
	"time"
)

// servers remembers what servers do with offers. The zero value knows none.
type servers struct {
	mu sync.Mutex
	of map[string]server // by address
}

// server is what is known of a server.
type server struct {
	proven bool      // it has moved data
	quiet  time.Time // there are no offers until then
}

// quiet is how long a server gets no offers that does not take them.
const quiet = 5 * time.Minute

// proven reports whether a server has moved data.
func (s *servers) proven(address string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.of[address].proven
}

// takes reports whether a request may offer a region to a server.
func (s *servers) takes(address string, req *http.Request, r *Region) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	known := s.of[address]
	conditional := req.Method == http.MethodPut && req.Header.Get("If-Match")+req.Header.Get("If-None-Match") != ""
	return (known.proven || !conditional) && (time.Now().After(known.quiet) || r.buf == nil) // a dma-buf has no other way
}

// learn keeps what the end of an exchange says of a server. One that has moved data may decline an
// offer; if it ignores one, it is as unknown as at first.
func (s *servers) learn(address string, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.of) >= 1000 {
		clear(s.of)
	}
	known := s.of[address]
	switch ignored := errors.Is(err, errIgnored) || errors.Is(err, ErrUnproven); {
	case err == nil:
		known = server{proven: true}
	case errors.Is(err, errRepeated), !ignored && (known.proven || !errors.Is(err, ErrDeclined)):
		return
	case known.proven:
		known.proven = false
	default:
		known.quiet = time.Now().Add(quiet)
	}
	if s.of == nil {
		s.of = map[string]server{}
	}
	s.of[address] = known
}
