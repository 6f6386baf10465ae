GO ?= go
CONTAINER ?= docker

.PHONY: run build test race rotate nemesis compat bench fuzz formatted lint check staticcheck vulnerabilities clean release image

# What `shoal --version` tells of this build.
VERSION ?= $(shell git describe --tags --match 'v*' --dirty 2>/dev/null || echo 0.1.0-dev)
COMMIT = $(shell git rev-parse HEAD 2>/dev/null)$(shell git diff --quiet HEAD 2>/dev/null || echo -dirty)
DATE = $(shell git log -1 --format=%cI 2>/dev/null)
BUILD = github.com/shoaldb/shoal/command
LDFLAGS = -X $(BUILD).release=$(VERSION:v%=%) -X $(BUILD).commit=$(COMMIT) -X $(BUILD).date=$(DATE)

# Build and start a sharded cluster on 127.0.0.1:27017, data under ./data.
run: build
	exec bin/shoal start

build:
	$(GO) build -ldflags '$(LDFLAGS)' -o bin/shoal ./cmd/shoal

# The whole test suite; needs Go and git only. The time limit of a package is for tests that hang: cmd/shoal's take some
# minutes on two processors, and a machine may be three times as slow, with other work beside it. Those that take longest are begun
# first, and tests wait more than they work: so twice as many packages as processors are built, vetted and tested at a time.
# cgocall is left out: it opens the sources of cgo by the path at which the build cache has first seen them, which may be gone.
LONGEST = ./cmd/shoal ./router ./storage ./shardnode
VET = $(shell $(GO) tool vet help | awk '/^Core flags/ { exit } /^    [a-z]+ / && $$1 != "cgocall" { print $$1 }' | paste -sd, -)
test: formatted
	$(GO) test -vet=$(VET) -p $$((2 * $$(getconf _NPROCESSORS_ONLN))) -timeout 40m $(LONGEST) ./...

race:
	$(GO) test -race ./...

# Servers in separate processes that are killed, paused and cut off: a replica set, a sharded cluster whose chunks move
# meanwhile (after each process was killed at each phase of DDL), or one after the other: make nemesis NEMESIS=30m TOPOLOGY=sharded. Many transactions on
# lists beside all that, with a checker of their isolation: SHOAL_APPENDS=1000000 SHOAL_APPENDS_LIMIT=50m go test ./cmd/shoal -run TestListNemesis -v -timeout 70m.
NEMESIS ?= 10m
TOPOLOGY ?= all
NEMESIS_replset = TestNemesis$$
NEMESIS_sharded = (TestShardedNemesis|TestKilledParticipantNemesis|TestKilledAloneNemesis|TestLostPrimariesNemesis|TestPowerLossOfSetsNemesis|TestKilledMoverNemesis|TestStoppedMoverNemesis|TestLongCloneNemesis)$$
NEMESIS_all = Nemesis$$
nemesis:
	SHOAL_NEMESIS=$(NEMESIS) $(GO) test -count=1 -timeout 0 -run '$(NEMESIS_$(TOPOLOGY))' -v ./cmd/shoal

formatted:
	@bad=$$(gofmt -l $$(git ls-files '*.go')); [ -z "$$bad" ] || { echo "gofmt: $$bad"; exit 1; }

lint: formatted
	$(GO) vet ./...

# What the compiler and vet let pass: unused code, mistakes of use. Fetched by the Go toolchain, its version is fixed here.
staticcheck:
	$(GO) run honnef.co/go/tools/cmd/staticcheck@v0.8.2 ./...

# Known vulnerabilities in what the binary calls, where their database can be reached.
vulnerabilities:
	packaging/vulnerabilities

# What else must hold of the tree: dependencies listed as they are used, generated code up to date, words spelt right (where
# Python's pip can fetch the speller).
check: staticcheck vulnerabilities
	$(GO) mod tidy -diff
	$(GO) generate ./wire/mongoerr && git diff --exit-code -- wire/mongoerr
	packaging/spelling

# One fuzz target and one package under the race detector, chosen by the day of the year, within five minutes.
rotate:
	packaging/rotate

# Real clients against a freshly started bin/shoal: see compat-tests/run.
compat: build
	compat-tests/run

# Ready for benchstat.
bench:
	$(GO) test -run '^$$' -bench . -benchmem ./...

# Every fuzz target for a short while: make fuzz FUZZTIME=1m
FUZZTIME ?= 20s
fuzz:
	@$(GO) list ./... | while read -r pkg; do \
	  $(GO) test -list '^Fuzz' $$pkg | grep '^Fuzz' | while read -r f; do \
	    echo "$$pkg $$f"; $(GO) test -run '^$$' -fuzz "^$$f$$" -fuzztime $(FUZZTIME) $$pkg || exit 1; \
	  done || exit 1; \
	done

# Archives for every platform in dist/, with the licence, checksums and a list of what is in the binary (SPDX).
release:
	VERSION=$(VERSION:v%=%) LDFLAGS='-s -w $(LDFLAGS)' packaging/release

# A container image that runs as the official one does: the names mongod and mongos, a user that is not root, /data/db. CONTAINER=buildah or
# CONTAINER=podman build it without a daemon.
image:
	$(CONTAINER) build -f packaging/Dockerfile --build-arg LDFLAGS='$(LDFLAGS)' -t shoal:$(VERSION:v%=%) .

clean:
	rm -rf bin dist
