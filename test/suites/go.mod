module github.com/goverbs/goverbs/test/suites

go 1.26.0

replace (
	github.com/goverbs/goverbs => ../..
	github.com/goverbs/goverbs/test/hca => ../hca
)

require (
	github.com/google/go-cmp v0.7.0
	github.com/goverbs/goverbs v0.0.0
	github.com/goverbs/goverbs/test/hca v0.0.0
	github.com/vishvananda/netlink v1.3.1
	golang.org/x/sys v0.49.0
)

require github.com/vishvananda/netns v0.0.5 // indirect
