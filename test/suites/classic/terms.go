package classic

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/goverbs/goverbs/cm/rdmacm"
)

// terms describe the client's test in the private data of its request. The server allocates memory
// for it, or rejects it with the terms that it supports.
type terms struct {
	size, count uint32
}

// termsLen is their length; what arrives is longer, by zeros.
const termsLen = 8

func (t terms) encode() []byte {
	return binary.BigEndian.AppendUint32(binary.BigEndian.AppendUint32(nil, t.size), t.count)
}

func decodeTerms(b []byte) (t terms, err error) {
	if len(b) < termsLen {
		return t, fmt.Errorf("%d bytes of private data, want %d", len(b), termsLen)
	}
	return terms{binary.BigEndian.Uint32(b), binary.BigEndian.Uint32(b[4:])}, nil
}

// fit reports whether a server with messages of up to a size can meet the terms.
func (t terms) fit(largest int) bool { return 0 < t.size && t.size <= uint32(largest) }

// requestTerms waits for a request whose terms can be met. Others it rejects.
func requestTerms(ctx context.Context, l *rdmacm.ID, largest int) (*rdmacm.Event, terms, error) {
	for {
		request, err := l.NextRequest(ctx)
		if err != nil {
			return nil, terms{}, err
		}
		t, err := decodeTerms(request.Param.PrivateData)
		if err == nil && t.fit(largest) {
			return request, t, nil
		}
		if err := reject(request, largest); err != nil {
			return nil, t, err
		}
	}
}

// reject rejects a request, and tells what size is possible.
func reject(request *rdmacm.Event, largest int) error {
	refusal := terms{size: uint32(largest)}
	return errors.Join(request.ID.Reject(refusal.encode(), rdmacm.ReasonConsumer), request.ID.Close())
}
