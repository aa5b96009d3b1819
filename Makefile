# Targets of this project, listed by make help. Each sets up its own requirements. See CONTRIBUTING.md.

VERSION ?= $(shell git describe --tags --always --dirty 2>/dev/null || echo dev)
RELEASE ?= $(shell sed -n 's/^appVersion: //p' deploy/helm/podgauge/Chart.yaml)

# go-nvml calls functions that the loaded driver may lack, so they are bound lazily.
# A build flag would not apply to `go test`, and cgo rejects the flag in #cgo lines.
export CGO_LDFLAGS = -Wl,-z,lazy
# go-nvml calls deprecated functions of nvml.h for older drivers.
export CGO_CFLAGS = -g -O2 -Wno-deprecated-declarations

ARCH ?= amd64 arm64
PROGRAM ?= podgauge
IMAGES = $(ARCH:%=$(CURDIR)/bin/$(PROGRAM)-image-%.tar)

TOOL = go tool -modfile=$(CURDIR)/tools/go.mod
LINT = $(TOOL) golangci-lint run -c $(CURDIR)/.golangci.yml
# Packages of test/e2e that need no root, and those that do.
ROOTLESS = ./chart ./image ./openmetrics ./podsfixture ./release ./tutorial
NODE = . ./attack ./node ./testcmd

# Suites of make e2e by name, and their short names.
SUITES = default all cluster soak churn xids tutorial image release dashboards fleet page pictures peers idle
SHORT = e2e-all e2e-cluster soak churn xids tutorial-check image-check release-check dashboards-check fleet-check page-check pictures bench-peers bench-idle
SUITE ?= default

.PHONY: help build kubectl-podgauge demo cluster test lint golden image release e2e $(SHORT) bench gpu

help: ## this list
	@sed -n 's/^\([a-z0-9-]*\):.*## \(.*\)/make \1: \2/p; s/^## \(.*\)/make e2e SUITE=\1/p' Makefile
	@echo "short names of suites: $(SHORT)"

build: ## bin/podgauge, and bin/podgauge-sim for a simulated machine
	go build -trimpath -ldflags '-s -w -X github.com/podgauge/podgauge/internal/app.version=$(VERSION)' -o bin/ ./cmd/podgauge ./cmd/podgauge-sim

kubectl-podgauge: ## bin/kubectl-podgauge, the kubectl plugin; GOOS=darwin GOARCH=arm64 for another machine
	cd cmd/kubectl-podgauge && CGO_ENABLED=0 go build -trimpath -ldflags '-s -w -X main.version=$(VERSION)' -o $(CURDIR)/bin/ .

demo: build ## a simulated node in this terminal
	go build -o bin/demo ./cmd/demo && exec bin/demo bin

cluster: ## a one-node cluster with simulated GPUs in this terminal; as root
	$(local-image) PROGRAM=podgauge-sim
	cd test/e2e && go run ./cmd/e2e setup cluster && go run ./cmd/e2e cluster

test: build ## all tests without root, those of allocations and calls without the race detector; COUNT=20 repeats each
	go test -race $(if $(COUNT),-count=$(COUNT) -timeout=2h) ./...
	go test -run 'Allocations|Calls' ./...
	cd test/e2e && go test -count=1 $(ROOTLESS)
	cd cmd/kubectl-podgauge && go test -race ./...
	go -C tools test ./...

# An advisory of today must not fail a change that is not its cause, so only the nightly run sets VULN.
lint: ## linters, unreachable code, workflows, and the limits of tools/codestats; VULN=1 adds known vulnerabilities
	go tool -modfile=$(CURDIR)/tools/release/go.mod actionlint -shellcheck= -pyflakes=
	$(LINT) ./...
	cd test/e2e && $(LINT) --build-tags cluster ./...
	cd cmd/kubectl-podgauge && $(LINT) ./...
	@for module in . cmd/kubectl-podgauge; do \
		unreachable="$$(cd $$module && $(TOOL) deadcode -test ./...)" && test -z "$$unreachable" || { echo "$$unreachable"; exit 1; }; \
	done
	go -C tools run ./codestats -check $(CURDIR)
	$(if $(VULN),$(TOOL) govulncheck ./...)
	$(if $(VULN),cd cmd/kubectl-podgauge && $(TOOL) govulncheck ./...)

golden: ## regenerate golden files
	go test ./internal/app ./internal/config ./dashboards ./internal/web/status -update
	cd test/e2e && go test ./podsfixture -run Fixtures -update
	cd cmd/kubectl-podgauge && go test -update .
	cd test/e2e/chart && go test -run Copies -update . && go test -run "Golden|Manifest|Readme" -update .

image: ## OCI archives in bin; ARCH=amd64 for one architecture; PROGRAM=podgauge-sim; BASES=local (as root) without a registry
	VERSION=$(VERSION) PROGRAM=$(PROGRAM) deploy/image/build.sh $(ARCH)
	cd test/e2e && PODGAUGE_IMAGES="$(IMAGES)" go test -count=1 -v -run 'TestImages$$' ./image

# Builds the image for this machine with local base images, without a registry.
local-image = $(MAKE) image ARCH=$(shell go env GOARCH) BASES=local

release: ## files, images and chart of a release in bin/release, under the chart's version; BASES=local as for image
	VERSION=$(RELEASE) deploy/release/build.sh

bench: ## Go benchmarks (docs/contributing/benchmarks.md)
	go test -run '^$$' -bench . -benchmem ./...

gpu: build ## tests on a machine with an NVIDIA GPU (docs/contributing/hardware.md)
	PODGAUGE_GPU=1 go test -count=1 -v -run Hardware ./internal/nvml/... ./internal/cdi

e2e: build ## a suite with real programs, by default with kubelet, containerd and Prometheus, as root
	$(if $(filter $(SUITE),$(SUITES)),$(suite-$(SUITE)),$(error SUITE=$(SUITE) is none of: $(SUITES)))

$(SHORT):
	@$(MAKE) e2e SUITE=$(patsubst e2e-%,%,$(patsubst bench-%,%,$(@:-check=)))

# Installs Debian's packages for missing programs; as root.
install = which $(1) >/dev/null || { apt-get update && apt-get install -y --no-install-recommends $(2); }

## default: end-to-end tests with a real kubelet, containerd and Prometheus; as root
define suite-default
cd test/e2e && go run ./cmd/e2e setup && go test -p 1 -count=1 -timeout 30m $(NODE)
endef

## all: the same with each kubelet version
define suite-all
cd test/e2e && go run ./cmd/e2e setup all
cd test/e2e && for v in v1.37.1 v1.36.3; do PODGAUGE_STRICT=1 KUBELET_VERSION=$$v go test -p 1 -count=1 -timeout 30m $(NODE) || exit 1; done
endef

## cluster: image and chart in a cluster with API server, controllers, helm and the Prometheus operator; as root
define suite-cluster
$(MAKE) kubectl-podgauge
$(local-image)
cd test/e2e && go run ./cmd/e2e setup monitoring && go test -count=1 -timeout 20m -v -tags cluster ./cluster
endef

## soak: memory over an hour of scrapes with all features, and ten minutes with the defaults; as root
define suite-soak
cd test/e2e && go run ./cmd/e2e setup && PODGAUGE_SOAK=10m go test -count=1 -timeout 30m -v -run 'TestMemory$$' .
cd test/e2e && PODGAUGE_SOAK=1h go test -count=1 -timeout 90m -v -run 'TestMemoryOfEverything' .
endef

## churn: a thousand pod starts and ends, simulated and with a real kubelet; as root
define suite-churn
PODGAUGE_CHURN=1000 go test -count=1 -timeout 20m -v -run 'TestChurn$$' ./internal/app
cd test/e2e && go run ./cmd/e2e setup && PODGAUGE_CHURN=1000 go test -count=1 -timeout 20m -v -run 'TestChurn$$' .
endef

## xids: latency from the driver's Xid report to the kubelet, 200 times; as root
define suite-xids
cd test/e2e && go run ./cmd/e2e setup && PODGAUGE_XIDS=200 go test -count=1 -timeout 20m -v -run 'TestEventLatency$$' .
endef

## tutorial: the commands of docs/getting-started/tutorial.md as they stand, and their output; as root
define suite-tutorial
cd test/e2e && PODGAUGE_TUTORIAL=1 go test -count=1 -timeout 90m -v -run 'TestTutorial$$' ./tutorial
endef

## image: podgauge from the archives of make image, without capabilities; as root
define suite-image
cd test/e2e && PODGAUGE_IMAGES="$(IMAGES)" go test -count=1 -v -run TestImages ./image
endef

## release: a release, published to a local registry, signed with a new key, and verified; BASES=local as for image
define suite-release
VERSION=$(RELEASE) deploy/release/check.sh
endef

## dashboards: dashboard queries and alert rules in a real Prometheus, and dashboards against Grafana's schema
define suite-dashboards
$(call install,prometheus promtool npm,prometheus npm)
promtool check rules deploy/rules/podgauge.rules.yaml deploy/rules/podgauge.recording.yaml
promtool test rules deploy/rules/*_test.yaml
cd test/e2e && PODGAUGE_PROMTOOL=1 go test -count=1 -run TestHealthyFleet ./openmetrics
cd test/observability/dashboards/schema && npm ci --ignore-scripts --no-audit --no-fund
PODGAUGE_DASHBOARDS=1 go test -count=1 -timeout 20m -v ./test/observability/dashboards
endef

FLEET ?= $(HOME)/.cache/podgauge-fleet

## fleet: dashboards over six hours of 500 nodes, in a real Prometheus and a Thanos cluster; writes docs/explanation/scale.md; FLEET is the folder of Thanos and data; needs 10 GB of memory
define suite-fleet
$(call install,prometheus,prometheus)
test/observability/dashboards/build-thanos $(FLEET)
PODGAUGE_FLEET=$(FLEET) go test -count=1 -timeout 2h -v -run 'TestFleet$$' ./test/observability/dashboards -write
endef

## page: status page in a real Chromium: content, timing, accessibility; writes docs/img
define suite-page
test/observability/page/setup && cd test/observability/page && node check.mjs
endef

## pictures: docs/img: page, commands and dashboards of three simulated nodes, drawn after twenty minutes
define suite-pictures
$(MAKE) kubectl-podgauge
$(call install,prometheus,prometheus)
test/observability/page/setup && cd test/observability/page/pictures && npm ci --silent && node pictures.mjs
endef

PEERS ?= $(HOME)/.cache/podgauge-peers

## peers: podgauge and its peers in one run, alternating; HOUR=1 adds memory after an hour; PEERS is the folder of the peers' sources; as root
define suite-peers
test/observability/peers/build $(PEERS)
PODGAUGE_PEERS=$(PEERS) go test -count=1 -timeout 4h -v -run 'TestPeers$$' ./test/observability/peers -write $(if $(HOUR),-hour)
endef

## idle: wakeups of an idle process; with strace, by system call
define suite-idle
PODGAUGE_IDLE=default go test -count=1 -v -run TestIdleMinute ./test/observability/peers
endef
