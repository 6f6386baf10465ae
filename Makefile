GO ?= go

.PHONY: run build test race nemesis compat bench fuzz lint clean

# Build and start a sharded cluster on 127.0.0.1:27017, data under ./data.
run: build
	exec bin/shoal start

build:
	$(GO) build -o bin/shoal ./cmd/shoal

# The whole test suite; needs Go and git only.
test: lint
	$(GO) test ./...

race:
	$(GO) test -race ./...

# Servers in separate processes that are killed, paused and cut off: a replica set, a sharded cluster whose chunks move
# meanwhile, or one after the other: make nemesis NEMESIS=10m TOPOLOGY=sharded
NEMESIS ?= 3m
TOPOLOGY ?= all
NEMESIS_replset = TestNemesis$$
NEMESIS_sharded = TestShardedNemesis$$
NEMESIS_all = Nemesis$$
nemesis:
	SHOAL_NEMESIS=$(NEMESIS) $(GO) test -count=1 -timeout 0 -run '$(NEMESIS_$(TOPOLOGY))' -v ./cmd/shoal

lint:
	@bad=$$(gofmt -l $$(git ls-files '*.go')); [ -z "$$bad" ] || { echo "gofmt: $$bad"; exit 1; }
	$(GO) vet ./...

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

clean:
	rm -rf bin
