module github.com/goverbs/goverbs/test/hca

go 1.26.0

require golang.org/x/sys v0.49.0
