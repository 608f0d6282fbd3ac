module github.com/goverbs/goverbs/test/efa

go 1.26.0

replace github.com/goverbs/goverbs/test/hca => ../hca

require github.com/goverbs/goverbs/test/hca v0.0.0

require golang.org/x/sys v0.49.0 // indirect
