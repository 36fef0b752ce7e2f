module github.com/tidemark-db/tidemark/bench

go 1.26.0

require github.com/tidemark-db/tidemark v0.0.0

require (
	github.com/puzpuzpuz/xsync/v3 v3.5.1
	golang.org/x/sys v0.50.0 // indirect
)

replace github.com/tidemark-db/tidemark => ../
