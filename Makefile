# make test    all tests that need Go and a redis-server: 6 minutes on two cores, 3 when all is built
# make lint    format, vet, staticcheck, and what this code and these pages rely on: 3 minutes, then 1
# make race    the race detector where goroutines share something: 7 minutes
# make check   lint, test and race: what .ci/run does
# make chaos   every fault with real processes, all seeds, browsers, fuzzing: some two hours
# make stress T=TestName   six copies of a test beside two busy loops, five times each
# make demo    three Caddy processes, one Redis, one limit: a table a second, for half a minute; then three regions
# make bench   figures beside other limiters and of whole servers; ten minutes, BENCH=-short for two
# make fuzz    each fuzz test for half a minute
# make size    lines that are shipped and lines of tests, without blanks and comments
# make release static programs for four platforms, checksums and bills of materials in dist

# The tags that xcaddy builds with. With the same ones everywhere, and without C but for the race
# detector, one build cache serves vet, the tests and the Caddy that they start.
TAGS := nobadger,nomysql,nopgx
export CGO_ENABLED := 0
STATICCHECK := honnef.co/go/tools/cmd/staticcheck@v0.8.2
ACTIONLINT := github.com/rhysd/actionlint/cmd/actionlint@v1.7.12
GOTESTSUM := gotest.tools/gotestsum@v1.13.0
CYCLONEDX := github.com/CycloneDX/cyclonedx-gomod/cmd/cyclonedx-gomod@v1.10.0

.PHONY: test lint race check chaos stress demo bench fuzz size release

# The loops under the race detector take one processor: lint has the other one meanwhile.
check:
	@$(MAKE) --no-print-directory -j2 lint race || { echo 'Of lint and race one has failed: "make[1]: ***" above says which.'; exit 1; }
	@$(MAKE) --no-print-directory test

# A line for each package as it ends, and at the end what failed. Most tests wait for something, so
# twice as many packages as there are cores run at once. Without tables for debuggers a program is
# linked in half the time, and two dozen of them have Caddy in them. Random tests draw the same each
# time; make chaos draws new ones.
GOTEST = RAPID_SEED=1 go run $(GOTESTSUM) --format pkgname-and-test-fails --format-icons text --hide-summary skipped -- \
	-vet=off -ldflags=-w -timeout 30m -p $$((2 * $$(getconf _NPROCESSORS_ONLN)))

# Those that take longest begin first, and of them those that need no Caddy, which is built meanwhile.
LONG := ./sync ./internal/sim/scenario ./sync/strict ./internal/operate ./internal/simulate ./internal/tests/... ./internal/cluster
test: redis
	@echo "Tests with a real Redis: 6 minutes on two cores, 3 when all is built."
	TIDE_REQUIRE_REDIS=1 $(GOTEST) -tags $(TAGS) $(LONG) ./...

# Where two goroutines share something. Of Go 1.26 all goroutines of a bubble that meet a timer which
# has passed share one context of the detector, and two at once end the process ("ThreadSanitizer:
# CHECK failed"). So one processor runs the loops, which wait for timers: what has no order is found
# as well.
LOOPS := ./sync ./sync/strict
RACED := ./internal/limits ./internal/table ./internal/control ./internal/gauge ./internal/ban ./internal/bandwidth ./internal/cycle
race: redis
	@echo "The race detector: 7 minutes on two cores."
	CGO_ENABLED=1 TIDE_REQUIRE_REDIS=1 $(GOTEST) -race -cpu 1 -tags $(TAGS) $(LOOPS)
	CGO_ENABLED=1 TIDE_REQUIRE_REDIS=1 $(GOTEST) -race -tags $(TAGS) $(RACED)

# With the tag chaos, the checks see all files.
lint:
	@unformatted=$$(gofmt -l .); test -z "$$unformatted" || { echo "not formatted, run gofmt -w on:" $$unformatted; exit 1; }
	go vet -tags $(TAGS),chaos ./...
	go run $(STATICCHECK) -tags $(TAGS),chaos ./...
	go run $(ACTIONLINT) .github/workflows/*.yml
	go run ./internal/lint

# What the tests need beside Go. Root on Debian gets it here; anybody else is told.
#   $(call need,program,package of Debian,what it is for,how else to get it)
define need
	@command -v $(1) >/dev/null || { \
		if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
			echo "Installing Debian's $(2). $(3)"; \
			apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $(2) >/dev/null; \
		else \
			echo "$(3) Install it (Debian: apt-get install $(2); $(4)), then run make $(MAKECMDGOALS) again."; \
			exit 1; \
		fi; }
endef

.PHONY: redis fail2ban browser promtool
redis:
	$(call need,$(or $(REDIS_SERVER),redis-server),redis-server,The tests need redis-server (6.0 or later).,Fedora: dnf install redis; macOS: brew install redis)

fail2ban:
	$(call need,fail2ban-regex,fail2ban,A test feeds log lines of bans to fail2ban-regex.,Fedora: dnf install fail2ban)

browser:
	$(call need,chromium,chromium,The status page is tested in chromium.,Fedora: dnf install chromium)

promtool:
	$(call need,promtool,prometheus,The alerts and the board are checked by promtool.,macOS: brew install prometheus)

# Seeds are new each time and printed: TIDE_SEED=<number> repeats a run, and UPDATE_GOLDENS=1 writes
# what is measured into the pages. Nothing else runs beside the measurements of internal/cluster.
chaos: redis fail2ban browser promtool comparisons containers newest fuzz
	RAPID_CHECKS=1000 TIDE_REQUIRE_REDIS=1 go test -vet=off -tags $(TAGS),chaos -timeout 150m -count 1 -p 1 ./...

size:
	@go list -deps -tags $(TAGS) -f '{{$$d := .Dir}}{{if .Module}}{{if .Module.Main}}{{range .GoFiles}}{{$$d}}/{{.}} {{end}}{{range .EmbedFiles}}{{$$d}}/{{.}} {{end}}{{end}}{{end}}' ./cmd/caddy \
		| xargs cat | grep -cvE '^\s*(//|--|$$)' | xargs echo "shipped:"
	@git ls-files '*_test.go' | xargs cat | grep -cvE '^\s*(//|$$)' | xargs echo "tests:"

# What bench compares is a module of its own, so that nobody who uses this one downloads it.
.PHONY: comparisons
comparisons:
	go -C bench vet -tags $(TAGS) ./...
	go -C bench test -tags $(TAGS) ./rivals ./compare

# The Dockerfile, Compose's file and the manifests of Kubernetes, started as far as that goes without
# an engine; a module of its own as well.
.PHONY: containers
containers: redis
	go -C deploy vet ./...
	go -C deploy test ./...
	@test "$$(id -u)" = 0 || echo "Not root: compose.yaml was read and not started, which takes chroot."

# A build against Caddy's newest release and its main branch.
.PHONY: newest
newest:
	dir=$$(mktemp -d) && trap 'rm -rf '$$dir EXIT && for version in latest master; do \
		cp go.mod go.sum $$dir && go get -modfile=$$dir/go.mod github.com/caddyserver/caddy/v2@$$version && \
		go build -modfile=$$dir/go.mod -tags $(TAGS) -o /dev/null ./cmd/caddy || exit 1; \
	done

# Each copy is a process, so that none waits for another. Busy loops end with the copies.
stress: redis
	@test -n "$(T)" || { echo "say which test: make stress T=TestName"; exit 1; }
	@dir=$$(mktemp -d) && package=$$(dirname $$(grep -rlE --include='*_test.go' '^func $(T)\(' . | head -1)) && \
		go test -c -tags $(TAGS) -o $$dir/stress.test $$package && cd $$package && \
		{ while :; do :; done & a=$$!; while :; do :; done & b=$$!; trap "kill $$a $$b; rm -rf $$dir" EXIT; \
		for i in 1 2 3 4 5 6; do { TIDE_REQUIRE_REDIS=1 $$dir/stress.test -test.run '^$(T)$$' -test.count 5 >$$dir/$$i 2>&1 || touch $$dir/red; } & eval "p$$i=$$!"; done; \
		wait $$p1 $$p2 $$p3 $$p4 $$p5 $$p6; cat $$dir/[1-6]; test ! -e $$dir/red; }

bench:
	cd bench && go run -tags $(TAGS) ./rivals $(BENCH) && go run -tags $(TAGS) ./compare -servers -latency -rounds 4 $(BENCH)

# The version comes from the tag. The same commit and the same Go make the same programs anywhere.
DIST := dist
TARGETS := linux/amd64 linux/arm64 darwin/amd64 darwin/arm64
VCS := true
release:
	mkdir -p $(DIST)
	@for target in $(TARGETS); do \
		os=$${target%/*}; arch=$${target#*/}; program=$(DIST)/caddy-tide-$$os-$$arch; echo $$program; \
		GOOS=$$os GOARCH=$$arch go build -buildvcs=$(VCS) -trimpath -tags $(TAGS) -ldflags '-s -w' -o $$program ./cmd/caddy && \
		go run -trimpath $(CYCLONEDX) bin -json -std -noserial -notimestamp -output $$program.cdx.json $$program || exit 1; \
	done
	cd $(DIST) && sha256sum caddy-tide-* >SHA256SUMS

demo:
	go run -tags $(TAGS) ./cmd/demo
	go run -tags $(TAGS) ./cmd/demo -regions -for 40s

# Each fuzz test, from what is in testdata/fuzz on.
FUZZ := 30s
fuzz:
	@dir=$$(mktemp -d) && trap 'rm -rf '$$dir EXIT && for package in $$(grep -rl --include='*_test.go' '^func Fuzz' . | xargs -n1 dirname | sort -u); do \
		go test -c -tags $(TAGS) -fuzz . -o $$dir/fuzz.test $$package || exit 1; \
		for name in $$(grep -hoE '^func Fuzz[A-Za-z0-9_]+' $$package/*_test.go | cut -d' ' -f2); do \
			echo "$$package $$name"; \
			(cd $$package && $$dir/fuzz.test -test.run '^$$' -test.fuzz "^$$name\$$" -test.fuzztime $(FUZZ) -test.fuzzcachedir $$dir/$$name) >$$dir/log 2>&1 || { cat $$dir/log; exit 1; }; \
			tail -1 $$dir/log | grep -q PASS || { cat $$dir/log; exit 1; }; \
		done; \
	done
