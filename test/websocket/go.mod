module github.com/goverbs/goverbs/test/websocket

go 1.26.0

replace github.com/goverbs/goverbs => ../..

require (
	github.com/coder/websocket v1.8.15
	github.com/goverbs/goverbs v0.0.0
)

require (
	github.com/vishvananda/netlink v1.3.1 // indirect
	github.com/vishvananda/netns v0.0.5 // indirect
	golang.org/x/sys v0.49.0 // indirect
)
