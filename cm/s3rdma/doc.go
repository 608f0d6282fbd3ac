// Package s3rdma moves the data of S3 requests by RDMA, as object stores do: an ordinary request
// has the header x-amz-rdma-token, which says where the memory of the client is, and no body. The
// server reads that memory for a PUT and writes it for a GET, as an initiator of DC, and the client
// does nothing meanwhile. The protocol is the one of NVIDIA's cuObject, which AIStor, versitygw,
// NooBaa and others speak.
//
// A client has a [Target], its memory is a [Region], and [Client] gets and puts objects:
//
//	target, err := s3rdma.NewTarget(dev, s3rdma.TargetOptions{})
//	region, err := target.Alloc(64<<20, uverbs.BufferOptions{})
//	client := &s3rdma.Client{Endpoint: "http://192.0.2.1:7070", Sign: sign}
//	res, err := client.Get(ctx, "bucket/key", region, s3rdma.GetOptions{})
//	use(region.Bytes()[:res.N])
//
// Clients of other packages have hooks before a request is signed and after its answer:
// [Region.Offer] and [Exchange.End] are for those.
//
// A server has an [Initiator]. [Initiator.Handler] stands between what authenticates requests and
// what handles them, which need not know about RDMA. [Initiator.Reader], [Initiator.Writer],
// [Initiator.Pull] and [Initiator.Push] are for servers that do not use net/http.
//
// # Security
//
// Whoever has a token and the access key can use the memory that the token describes, from any host
// of the network. So a region has a key only while a request offers it, for the bytes and the
// direction of that request, at a random address; the key is gone when [Client.Get] or [Client.Put]
// returns, whatever the server does. Without TLS the network sees the token meanwhile. The default
// access key is the same everywhere; clients and servers of one site can have another.
//
// A client names its target itself. A server that believes any token can be made to write into the
// memory of others, so by default it takes only targets at the address that the request came from;
// see [InitiatorOptions].Networks. Where the RDMA port has another address than the port that HTTP
// uses, as on InfiniBand or with an adapter for management, no request is of that kind, and a
// server without Networks declines all offers.
//
// The signature of a request covers the token and not the data; nothing but the network protects
// the data. Of a PUT, a server may check a sum that the request has; of a GET, the client may check
// one that the server has: [PutOptions].Checksum and [GetOptions].Checksum. They find errors, not
// attackers: the server's sum comes by HTTP, which has to be TLS for that.
//
// # Requirements
//
// DC is a transport of ConnectX adapters, on RoCE v2 and InfiniBand. On other devices [NewTarget]
// and [NewInitiator] fail with a [uverbs.FeatureError].
package s3rdma
