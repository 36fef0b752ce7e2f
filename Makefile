# Bare `make` lists the targets.

GO          ?= go
FUZZTIME    ?= 60s
STATICCHECK  = honnef.co/go/tools/cmd/staticcheck@v0.7.0
MODULES      = $(dir $(shell find . -name go.mod -not -path './.cache/*'))
FUZZ         = $(shell grep -roE --include=*_test.go "^func Fuzz[A-Za-z]+" . | sed -E "s|^(.*)/[^/]*:func (.*)|\1:\2|")

.DEFAULT_GOAL := help

help: ## list the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | awk -F':.*## ' '{printf "  make %-12s %s\n", $$1, $$2}'

demo: ## index a source tree while being killed twice, and compare with an index in memory
	$(GO) run ./examples/invertedindex

build: ## build every module
	@for d in $(MODULES); do echo "build $$d"; (cd $$d && $(GO) build ./...) || exit 1; done

test: ## all tests
	$(GO) test ./...

race: ## all tests under the race detector, crash tests shortened
	$(GO) test -race -short -timeout 20m ./...

crash: ## at least 200,000 crash images, with every adversary (about 15 minutes)
	$(GO) test ./structures/hashmap -run 'TestCrash' -v -timeout 60m -crash.images 24 -crash.histories 200
	$(GO) test ./structures/hashmap -run 'TestCrashRandom' -v -timeout 60m -crash.wide -crash.histories 3
	$(GO) test ./payload -run 'Crash' -v -timeout 60m -crash.images 24 -crash.histories 60

mutants: ## break each key rule in turn: a crash test must notice
	$(GO) test -tags tidemark_mutants -run Mutants -timeout 20m ./structures/hashmap ./payload ./internal/torture

torture: ## kill a loaded process 300 times and check what is left
	$(GO) test ./internal/torture -run TestKill -v -kills 300 -timeout 30m

fuzz: ## each parser of media for FUZZTIME (60s)
	@for f in $(FUZZ); do echo "$$f"; $(GO) test -run '^$$' -fuzz "^$${f##*:}$$" -fuzztime $(FUZZTIME) "$${f%%:*}" || exit 1; done

replay: ## run the crash in TIDEMARK_REPLAY, in the test named by RUN in PKG
	@test -n "$$TIDEMARK_REPLAY" || { echo "set TIDEMARK_REPLAY to a crash as a failure prints it"; exit 2; }
	$(GO) test $(or $(PKG),./structures/hashmap) -run '$(or $(RUN),Crash)' -v

bench: ## the Go benchmarks; see bench/ for comparisons
	$(GO) test -run '^$$' -bench . -benchmem . ./structures/hashmap

cross: ## vet for the other systems and builds
	@for t in linux/arm64 darwin/arm64 windows/amd64 linux/386 linux/riscv64; do echo "vet $$t"; GOOS=$${t%/*} GOARCH=$${t#*/} $(GO) vet ./... || exit 1; done
	$(GO) vet -tags purego ./...
	$(GO) vet -tags tidemark_mutants ./...

lint: ## formatting, vet and staticcheck, every module
	@test -z "$$(gofmt -l .)" || { gofmt -l .; exit 1; }
	@for d in $(MODULES); do echo "lint $$d"; (cd $$d && $(GO) vet ./... && $(GO) run $(STATICCHECK) ./...) || exit 1; done

fmt: ## format
	gofmt -w .

check: build lint test ## what must pass before a commit

.PHONY: help demo build test race crash mutants torture fuzz replay bench cross lint fmt check
