// Package mad encodes and decodes InfiniBand management datagrams (MADs), the messages by which a subnet
// is managed. They ask for nodes, the state and the counters of ports, and paths to a GID. Package umad
// sends and receives them.
//
// # Packets
//
// A [Packet] is a MAD of up to 256 bytes, or an answer that the kernel has put together from several
// (RMPP). All MADs have a [Header]; the class decides which other headers follow and where the data
// begins. [NewSMP], [NewDirectedSMP], [NewPerf], [NewSA] and [NewVendor] make requests:
//
//	req := mad.NewSMP(mad.MethodGet, mad.AttrPortInfo, 1) // port 1 of the node at a LID
//	req, err := mad.NewDirectedSMP(mad.MethodGet, mad.AttrNodeInfo, 0, 1) // the node behind port 1
//
// # Attributes
//
// The data of a MAD is an attribute, such as [NodeInfo] or [PathRecord]. [Packet.Decode] decodes it from
// a MAD, [Packet.Put] encodes it into one, and [Table] decodes a table of records. [Marshal] and
// [Unmarshal] do the same on bytes. Fields have the names that the InfiniBand specification gives them,
// in Go's spelling, and hold the numbers of the specification.
//
// The struct tags are the formats: `mad:"34.5 3"` is a field of 3 bits that begins at bit 5 of byte 34,
// where bit 0 is the most significant one. Without a number of bits the field is as wide as its type.
// A type of another package with such tags can be an [Attribute] too, for instance one of a vendor.
//
// # Errors
//
// [Packet.Err] returns the error that a MAD reports. Decoding never panics, whatever the bytes are; if
// there are too few, the error matches [io.ErrUnexpectedEOF]. A field that does not fit its bits is an
// error of encoding, which matches [ErrRange].
//
// All functions can be called concurrently. A Packet must not be changed while others use it.
package mad
