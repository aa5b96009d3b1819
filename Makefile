# Targets of this project; each sets up its own requirements. See CONTRIBUTING.md.

VERSION ?= $(shell git describe --tags --always --dirty 2>/dev/null || echo dev)

# go-nvml calls functions that the loaded driver may lack, so they are bound lazily.
# A build flag would not apply to `go test`, and cgo rejects the flag in #cgo lines.
export CGO_LDFLAGS = -Wl,-z,lazy
# go-nvml calls deprecated functions of nvml.h for older drivers.
export CGO_CFLAGS = -g -O2 -Wno-deprecated-declarations

ARCH ?= amd64 arm64
PROGRAM ?= podgauge
# Packages of test/e2e that need no root.
ROOTLESS = ./chart ./image ./openmetrics ./podsfixture ./release ./tutorial
IMAGES = $(ARCH:%=$(CURDIR)/bin/$(PROGRAM)-image-%.tar)

TOOL = go tool -modfile=$(CURDIR)/tools/go.mod

.PHONY: demo test stress build kubectl-podgauge image image-check lint rules golden dashboards-check fleet-check page-check pictures e2e e2e-all e2e-cluster cluster tutorial-check soak churn xids bench bench-peers bench-idle gpu release release-check vulncheck

build: ## bin/podgauge, and bin/podgauge-sim for a simulated machine
	go build -trimpath -ldflags '-s -w -X github.com/podgauge/podgauge/internal/app.version=$(VERSION)' -o bin/ ./cmd/podgauge ./cmd/podgauge-sim

kubectl-podgauge: ## bin/kubectl-podgauge, the kubectl plugin; GOOS=darwin GOARCH=arm64 for another machine
	cd cmd/kubectl-podgauge && CGO_ENABLED=0 go build -trimpath -ldflags '-s -w -X main.version=$(VERSION)' -o $(CURDIR)/bin/ .

image: ## OCI archives in bin; ARCH=amd64 for one architecture; PROGRAM=podgauge-sim; BASES=local (as root) without a registry
	VERSION=$(VERSION) PROGRAM=$(PROGRAM) deploy/image/build.sh $(ARCH)
	cd test/e2e && PODGAUGE_IMAGES="$(IMAGES)" go test -count=1 -v -run 'TestImages$$' ./image

image-check: ## run podgauge from these archives, without capabilities; as root
	cd test/e2e && PODGAUGE_IMAGES="$(IMAGES)" go test -count=1 -v -run TestImages ./image

demo: build ## a simulated node in this terminal
	go build -o bin/demo ./cmd/demo && exec bin/demo bin

test: build ## all tests without root; tests of allocations and call counts run without the race detector
	go test -race ./...
	go test -run 'Allocations|Calls' ./...
	cd test/e2e && go test -count=1 $(ROOTLESS)
	cd cmd/kubectl-podgauge && go test -race ./...
	go -C tools test ./...

stress: build ## the tests of make test 20 times with -race beside four busy loops; RUNS=5 PKGS=./exporter/... for fewer
	test/stress/stress $(PKGS)

rules: ## alert rules in the installed promtool; make test evaluates them without it
	promtool check rules deploy/rules/podgauge.rules.yaml deploy/rules/podgauge.recording.yaml
	promtool test rules deploy/rules/*_test.yaml
	cd test/e2e && PODGAUGE_PROMTOOL=1 go test -count=1 -run TestHealthyFleet ./openmetrics

golden: ## regenerate golden files
	go test ./internal/app ./internal/config ./dashboards ./internal/web/status -update
	cd test/e2e && go test ./podsfixture -run Fixtures -update
	cd cmd/kubectl-podgauge && go test -update .
	cd test/e2e/chart && go test -run Copies -update . && go test -run "Golden|Manifest|Readme" -update .

dashboards-check: build ## dashboard queries in a real Prometheus, and dashboards against Grafana's schema
	which prometheus promtool npm >/dev/null || { apt-get update && apt-get install -y --no-install-recommends prometheus npm; }
	cd test/observability/dashboards/schema && npm ci --ignore-scripts --no-audit --no-fund
	PODGAUGE_DASHBOARDS=1 go test -count=1 -timeout 20m -v ./test/observability/dashboards

FLEET ?= $(HOME)/.cache/podgauge-fleet

fleet-check: build ## dashboards over six hours of 500 nodes, in a real Prometheus and a Thanos cluster; writes docs/explanation/scale.md; FLEET is the folder of Thanos and data; needs 10 GB of memory
	which prometheus >/dev/null || { apt-get update && apt-get install -y --no-install-recommends prometheus; }
	test/observability/dashboards/build-thanos $(FLEET)
	PODGAUGE_FLEET=$(FLEET) go test -count=1 -timeout 2h -v -run 'TestFleet$$' ./test/observability/dashboards -write

page-check: build ## status page in a real Chromium: content, timing, accessibility; writes docs/img
	test/observability/page/setup && cd test/observability/page && node check.mjs

pictures: build kubectl-podgauge ## docs/img: page, commands and dashboards of three simulated nodes, drawn after twenty minutes
	which prometheus >/dev/null || { apt-get update && apt-get install -y --no-install-recommends prometheus; }
	test/observability/page/setup && cd test/observability/page/pictures && npm ci --silent && node pictures.mjs

release: ## files, images and chart of a release in bin/release, under the chart's version; BASES=local as for image
	VERSION=$(RELEASE) deploy/release/build.sh

release-check: ## build a release, publish it to a local registry, sign it with a new key, and verify it; BASES=local as for image
	VERSION=$(RELEASE) deploy/release/check.sh

lint:
	go tool -modfile=$(CURDIR)/tools/release/go.mod actionlint -shellcheck= -pyflakes=
	$(TOOL) golangci-lint run ./...
	@unreachable="$$($(TOOL) deadcode -test ./...)" && test -z "$$unreachable" || { echo "$$unreachable"; exit 1; }
	go -C tools run ./codestats -check $(CURDIR)
	cd test/e2e && $(TOOL) golangci-lint run -c $(CURDIR)/.golangci.yml --build-tags cluster ./...
	cd cmd/kubectl-podgauge && $(TOOL) golangci-lint run -c $(CURDIR)/.golangci.yml ./...
	@cd cmd/kubectl-podgauge && unreachable="$$($(TOOL) deadcode -test ./...)" && test -z "$$unreachable" || { echo "$$unreachable"; exit 1; }

# Not in lint: it needs https://vuln.go.dev, and an advisory of today must not fail a change that is not its cause.
vulncheck: ## known vulnerabilities in code that podgauge calls, of modules and Go; each night
	$(TOOL) govulncheck ./...
	cd cmd/kubectl-podgauge && $(TOOL) govulncheck ./...

e2e: build ## end-to-end tests with a real kubelet, containerd and Prometheus; as root
	cd test/e2e && go run ./cmd/e2e setup && go test -p 1 -count=1 -timeout 30m . ./attack ./node ./testcmd

e2e-all: build ## end-to-end tests with each kubelet version; as root
	cd test/e2e && go run ./cmd/e2e setup all
	cd test/e2e && for v in v1.37.1 v1.36.3; do PODGAUGE_STRICT=1 KUBELET_VERSION=$$v go test -p 1 -count=1 -timeout 30m . ./attack ./node ./testcmd || exit 1; done

# Builds the image with local base images, without a registry.
here = $(MAKE) image ARCH=$(shell go env GOARCH) BASES=local

e2e-cluster: build kubectl-podgauge ## image and chart in a cluster with API server, controllers, helm and the Prometheus operator; as root
	$(here)
	cd test/e2e && go run ./cmd/e2e setup monitoring && go test -count=1 -timeout 20m -v -tags cluster ./cluster

cluster: ## a one-node cluster with simulated GPUs in this terminal; as root
	$(here) PROGRAM=podgauge-sim
	cd test/e2e && go run ./cmd/e2e setup cluster && go run ./cmd/e2e cluster

tutorial-check: ## the commands of docs/getting-started/tutorial.md as they stand, and their output; as root
	cd test/e2e && PODGAUGE_TUTORIAL=1 go test -count=1 -timeout 90m -v -run 'TestTutorial$$' ./tutorial

soak: build ## memory over an hour of scrapes with all features, and ten minutes with the defaults; as root
	cd test/e2e && go run ./cmd/e2e setup && PODGAUGE_SOAK=10m go test -count=1 -timeout 30m -v -run 'TestMemory$$' .
	cd test/e2e && PODGAUGE_SOAK=1h go test -count=1 -timeout 90m -v -run 'TestMemoryOfEverything' .

churn: build ## a thousand pod starts and ends, simulated and with a real kubelet; as root
	PODGAUGE_CHURN=1000 go test -count=1 -timeout 20m -v -run 'TestChurn$$' ./internal/app
	cd test/e2e && go run ./cmd/e2e setup && PODGAUGE_CHURN=1000 go test -count=1 -timeout 20m -v -run 'TestChurn$$' .

xids: build ## latency from the driver's Xid report to the kubelet, 200 times; as root
	cd test/e2e && go run ./cmd/e2e setup && PODGAUGE_XIDS=200 go test -count=1 -timeout 20m -v -run 'TestEventLatency$$' .

bench: ## Go benchmarks (docs/contributing/benchmarks.md)
	go test -run '^$$' -bench . -benchmem ./...

RELEASE ?= $(shell sed -n 's/^appVersion: //p' deploy/helm/podgauge/Chart.yaml)

PEERS ?= $(HOME)/.cache/podgauge-peers

bench-peers: build ## podgauge and its peers in one run, alternating; HOUR=1 adds memory after an hour; PEERS is the folder of the peers' sources; as root
	test/observability/peers/build $(PEERS)
	PODGAUGE_PEERS=$(PEERS) go test -count=1 -timeout 4h -v -run 'TestPeers$$' ./test/observability/peers -write $(if $(HOUR),-hour)

bench-idle: build ## wakeups of an idle process; with strace, by system call
	PODGAUGE_IDLE=default go test -count=1 -v -run TestIdleMinute ./test/observability/peers

gpu: build ## tests on a machine with an NVIDIA GPU (docs/contributing/hardware.md)
	PODGAUGE_GPU=1 go test -count=1 -v -run Hardware ./internal/nvml/...
