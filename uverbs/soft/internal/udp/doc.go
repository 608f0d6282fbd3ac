// Package udp sends and receives the packets of RoCE v2 in batches.
package udp
