# make test   vet and all tests with -race and a real Redis
# make chaos  every fault with real processes, measured, and a million requests counted once
# make demo   three Caddy processes, one Redis, one limit: a table a second, for half a minute; then a reset, and three regions
# make check  what .ci/run does
# make bench  figures beside other limiters and of whole servers; ten minutes, BENCH=-short for two
# make fuzz   each fuzz test for half a minute
# make release  static programs for four platforms, checksums and bills of materials in dist

# The tags that xcaddy builds with: one build cache serves all.
TAGS := nobadger,nomysql,nopgx
STATICCHECK := honnef.co/go/tools/cmd/staticcheck@v0.8.2
ACTIONLINT := github.com/rhysd/actionlint/cmd/actionlint@v1.7.12

.PHONY: test check lint redis fail2ban chaos demo fuzz fuzz-briefly bench release

# What tells of a test that failed, among all that the tests print.
FAILED := '^ *--- FAIL|^FAIL|^panic:|DATA RACE|^ +[a-z0-9_]+_test\.go:'

test: redis fail2ban browser promtool
	@echo "go test -race, with a real Redis"; log=$$(mktemp) && trap 'rm -f '$$log EXIT && \
		{ TIDE_REQUIRE_REDIS=1 go test -race -tags $(TAGS) -timeout 30m ./sync ./... 2>&1 || printf '\ngo test failed\n'; } | tee $$log; \
		! grep -qx 'go test failed' $$log || { echo "What failed, once more:"; grep -aE $(FAILED) $$log | cut -c1-500; exit 1; }
	go test -tags $(TAGS) -run '^TestScenarios$$' .
	TIDE_REQUIRE_REDIS=1 go test -tags $(TAGS) -timeout 30m ./sync ./internal/sim

check: format static lint test comparisons containers fuzz-briefly

.PHONY: format static
format:
	@unformatted=$$(gofmt -l .); test -z "$$unformatted" || { echo "not formatted, run gofmt -w on:" $$unformatted; exit 1; }

static:
	go vet -tags $(TAGS) ./...
	go run $(STATICCHECK) -tags $(TAGS) ./...
	go run $(ACTIONLINT) .github/workflows/*.yml

# What this code relies on and no general linter knows.
lint:
	go run ./internal/lint

# What bench compares is a module of its own, so that nobody who uses this one downloads it.
.PHONY: comparisons
comparisons:
	go -C bench vet -tags $(TAGS) ./...
	go -C bench test -tags $(TAGS) ./rivals ./compare ./scale

# The Dockerfile, Compose's file and the manifests of Kubernetes, started as far as that goes without
# an engine; a module of its own as well.
.PHONY: containers
containers: redis
	go -C deploy vet ./...
	go -C deploy test ./...
	@test "$$(id -u)" = 0 || echo "Not root: compose.yaml was read and not started, which takes chroot."

bench:
	cd bench && go run -tags $(TAGS) ./rivals $(BENCH) && go run -tags $(TAGS) ./compare -servers -latency -rounds 4 $(BENCH)

# What the tests need beside Go. Root on Debian gets it here; anybody else is told.
#   $(call need,program,package of Debian,what it is for,how else to get it)
define need
	@command -v $(1) >/dev/null || { \
		if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
			apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $(2); \
		else \
			echo "$(3) Install it (Debian: apt-get install $(2); $(4)), then run make $(MAKECMDGOALS) again."; \
			exit 1; \
		fi; }
endef

.PHONY: browser promtool
redis:
	$(call need,redis-server,redis-server,The tests need redis-server (7.0 or later).,Fedora: dnf install redis; macOS: brew install redis)

fail2ban:
	$(call need,fail2ban-regex,fail2ban,A test feeds log lines of bans to fail2ban-regex.,Fedora: dnf install fail2ban)

browser:
	$(call need,chromium,chromium,The status page is tested in chromium.,Fedora: dnf install chromium)

promtool:
	$(call need,promtool,prometheus,The alerts and the board are checked by promtool.,macOS: brew install prometheus)

# What is measured goes into the page's tables. SEED=<number> is another order of faults.
SEED := 1
chaos: redis
	TIDE_REQUIRE_REDIS=1 go test -tags $(TAGS) -timeout 60m -count 1 -v -run '^(TestFault|TestExactlyOnce)' ./internal/cluster -long -seed $(SEED) -report ../../docs/internals/reliability.md
	go test -tags $(TAGS) -timeout 60m -count 1 -run '^TestEverySchedule$$' ./sync -schedules 500
	go test -tags $(TAGS) -timeout 60m -count 1 -run '^TestEveryHistory$$' ./internal/control -histories 100000
	TIDE_REQUIRE_REDIS=1 go test -tags $(TAGS) -timeout 60m -count 1 -v -run '^TestChangesOverASlowRedis$$' ./internal/control -changes 100

release:
	GOFLAGS=-buildvcs=true go run ./internal/release -o dist

demo:
	go run -tags $(TAGS) ./cmd/demo
	go run -tags $(TAGS) ./cmd/demo -regions -for 40s

# Each fuzz test, from what is in testdata/fuzz on: for half a minute, and for a number of inputs
# that takes about a second.
fuzz: FUZZ := 30s
fuzz-briefly: FUZZ := 1000x

fuzz fuzz-briefly:
	@dir=$$(mktemp -d) && trap 'rm -rf '$$dir EXIT && for package in $$(grep -rl --include='*_test.go' '^func Fuzz' . | xargs -n1 dirname | sort -u); do \
		go test -c -tags $(TAGS) -fuzz . -o $$dir/fuzz.test $$package || exit 1; \
		for name in $$(grep -hoE '^func Fuzz[A-Za-z0-9_]+' $$package/*_test.go | cut -d' ' -f2); do \
			echo "$$package $$name"; \
			(cd $$package && $$dir/fuzz.test -test.run '^$$' -test.fuzz "^$$name\$$" -test.fuzztime $(FUZZ) -test.fuzzcachedir $$dir/$$name) >$$dir/log 2>&1 || { cat $$dir/log; exit 1; }; \
			tail -1 $$dir/log | grep -q PASS || { cat $$dir/log; exit 1; }; \
		done; \
	done
