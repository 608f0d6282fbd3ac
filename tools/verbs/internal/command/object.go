package command

import (
	"bytes"
	"encoding/json"
	"fmt"
)

// MarshalObject returns a JSON object of so many members, whose keys keep their order.
func MarshalObject(members int, member func(i int) (key string, value any)) ([]byte, error) {
	b := bytes.NewBufferString("{")
	for i := range members {
		key, v := member(i)
		value, err := json.Marshal(v)
		if err != nil {
			return nil, err
		}
		if i > 0 {
			b.WriteByte(',')
		}
		fmt.Fprintf(b, "%q:%s", key, value)
	}
	b.WriteByte('}')
	return b.Bytes(), nil
}
