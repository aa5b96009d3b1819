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
ROOTLESS = ./chart ./image ./openmetrics ./podsfixture ./programs ./release ./tutorial
NODE = . ./node

# Suites of make e2e by name, and their short names.
SUITES = default smoke all attack cluster arm64 soak churn xids tutorial image release dashboards collector fleet page pictures peers
SHORT = e2e-smoke e2e-all e2e-attack e2e-cluster arm64 soak churn xids tutorial-check image-check release-check dashboards-check collector-check fleet-check page-check pictures bench-peers
SUITE ?= default
# Suites that run in a guest, too, with VM=1.
VM_SUITES = default smoke all attack

.PHONY: help build kubectl-podgauge demo cluster test test-all lint golden image release e2e $(SHORT) bench gpu

help: ## this list
	@sed -n 's/^\([a-z0-9-]*\):.*## \(.*\)/make \1: \2/p; s/^## \(.*\)/make e2e SUITE=\1/p' Makefile
	@echo "short names of suites: $(SHORT)"

build: ## bin/podgauge, and bin/podgauge-sim for a simulated machine
	go build -trimpath -ldflags '-s -w -X github.com/podgauge/podgauge/internal/app.version=$(VERSION)' -o bin/ ./cmd/podgauge ./cmd/podgauge-sim

kubectl-podgauge: ## bin/kubectl-podgauge, the kubectl plugin, and bin/podgauge-kube; GOOS=darwin GOARCH=arm64 for another machine
	cd kube && CGO_ENABLED=0 go build -trimpath -ldflags '-s -w -X main.version=$(VERSION)' -o $(CURDIR)/bin/ ./cmd/kubectl-podgauge ./cmd/podgauge-kube

demo: build ## a simulated node in this terminal
	@echo "status page: http://127.0.0.1:9400/   metrics: curl 127.0.0.1:9400/metrics   stop: Ctrl-C"
	bin/podgauge-sim --web.listen-address=127.0.0.1:9400 --log.level=error & \
		trap "kill $$!" EXIT; trap exit HUP INT TERM; \
		bin/podgauge status -w --url=http://127.0.0.1:9400

cluster: ## a one-node cluster with simulated GPUs in this terminal; as root
	$(local-image) PROGRAM=podgauge-sim
	$(local-image) PROGRAM=podgauge-kube
	cd test/e2e && go run ./cmd/e2e setup cluster && go run ./cmd/e2e cluster

# Many tests wait, so more run at a time than there are processors.
PARALLEL = -parallel 8

test: ## the tests without root, but for the slowest
	go test -short $(PARALLEL) ./...
	cd kube && go test ./...
	go -C tools test ./...

test-all: build ## all tests that need no root, with the race detector; COUNT=20 repeats each
	go test -race $(PARALLEL) $(if $(COUNT),-count=$(COUNT) -timeout=2h) ./...
	go test -run 'Allocations|Calls' ./... # the race detector changes them
	cd test/e2e && go test -count=1 $(ROOTLESS)
	cd kube && go test -race ./...
	go -C tools test ./...

# An advisory of today must not fail a change that is not its cause, so only the nightly run sets VULN.
lint: ## linters, unreachable code, workflows, and the limits of tools/codestats; VULN=1 adds known vulnerabilities
	go tool -modfile=$(CURDIR)/tools/release/go.mod actionlint -shellcheck= -pyflakes=
	$(LINT) ./...
	cd test/e2e && $(LINT) --build-tags cluster ./...
	cd kube && $(LINT) ./...
	@for module in . kube; do \
		unreachable="$$(cd $$module && $(TOOL) deadcode -test ./...)" && test -z "$$unreachable" || { echo "$$unreachable"; exit 1; }; \
	done
	go -C tools run ./codestats -check $(CURDIR)
	$(if $(VULN),$(TOOL) govulncheck ./...)
	$(if $(VULN),cd kube && $(TOOL) govulncheck ./...)

golden: ## regenerate golden files
	go test ./internal/app ./internal/config ./dashboards ./exporter ./internal/web/status ./test/repo -update
	cd test/e2e && go test ./podsfixture -run Fixtures -update
	cd kube && go test ./cmd/kubectl-podgauge ./cmd/podgauge-kube -update
	cd test/e2e/chart && go test -run Copies -update . && go test -run "Golden|Manifest|Readme" -update .

image: ## OCI archives in bin; ARCH=amd64 for one architecture; PROGRAM=podgauge-sim or podgauge-kube; BASES=local (as root) without a registry
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

e2e: build ## a suite with real programs, by default with kubelet, containerd and Prometheus, as root; VM=1 in a guest with cgroup v2 and systemd
	$(if $(filter $(SUITE),$(if $(VM),$(VM_SUITES),$(SUITES))),$(suite-$(SUITE)),$(error SUITE=$(SUITE) is none of: $(if $(VM),$(VM_SUITES),$(SUITES))))

$(SHORT):
	@$(MAKE) e2e SUITE=$(patsubst e2e-%,%,$(patsubst bench-%,%,$(@:-check=)))

# Installs Debian's packages for missing programs; as root.
install = which $(1) >/dev/null || { apt-get update && apt-get install -y --no-install-recommends $(2); }

# In test/e2e: set-up, and go test on this machine or in the guest, which ends with go test. make signals the command of exec.
e2e-setup = cd test/e2e && go build -o $(CURDIR)/bin/ ./cmd/e2e && $(CURDIR)/bin/e2e setup $(if $(VM),guest)
e2e-test = go test -p 1 -count=1 $(if $(VM),-exec '$(CURDIR)/bin/e2e guest' -timeout 2h,-timeout 30m)

## default: end-to-end tests with a real kubelet, containerd and Prometheus; as root
define suite-default
$(e2e-setup) && exec $(e2e-test) $(NODE)
endef

## smoke: five minutes of them: owners, shared GPUs, device list strategies, kubelet restarts, incidents; as root
define suite-smoke
$(e2e-setup) && exec $(e2e-test) -run '^Test(Owners|Shares|DeviceListStrategies|KubeletRestarts|Incidents)$$' .
endef

## all: the same with each kubelet version, and attack
define suite-all
$(e2e-setup) all && for v in v1.37.1 v1.36.3; do $(if $(VM),,PODGAUGE_TOLERANCE=1) KUBELET_VERSION=$$v $(e2e-test) $(NODE) || exit 1; done && \
	exec $(e2e-test) ./attack
endef

## attack: 200 hostile clients, and too large answers of a kubelet, in the memory of the chart's limit; as root
define suite-attack
$(e2e-setup) && exec $(e2e-test) ./attack
endef

## cluster: image and chart in a cluster with API server, controllers, helm and the Prometheus operator; as root
define suite-cluster
$(MAKE) kubectl-podgauge
$(local-image)
$(local-image) PROGRAM=podgauge-kube
cd test/e2e && go run ./cmd/e2e setup monitoring && go test -count=1 -timeout 20m -v -tags cluster ./cluster
endef

# Packages that were not tried, as simulated nodes in all states are slow, or whose tests only read the repository.
NOT_ARM64 = /(cmd/podgauge|dashboards|internal/app|test/repo|test/observability/.*)$$

## arm64: tests and the program for arm64 on the stand-in, in qemu-user; as root, on Linux 6.7 or newer
define suite-arm64
$(call install,qemu-aarch64-static aarch64-linux-gnu-gcc,qemu-user-static gcc-aarch64-linux-gnu libc6-dev-arm64-cross)
test/e2e/arm64/run go build -o bin/arm64/ ./cmd/podgauge
PODGAUGE_BINARY=$(CURDIR)/bin/arm64/podgauge test/e2e/arm64/run go test -vet=off -count=1 -v ./cmd/podgauge
test/e2e/arm64/run go test -vet=off -count=1 -timeout 30m -skip '^FuzzMonitor$$' $$(go list ./... | grep -vE '$(NOT_ARM64)')
endef

## soak: memory over an hour of scrapes with all features, and ten minutes with the defaults; as root
define suite-soak
$(e2e-setup) && PODGAUGE_SOAK=10m $(e2e-test) -v -run 'TestMemory$$' .
cd test/e2e && PODGAUGE_SOAK=1h $(e2e-test) -timeout 90m -v -run 'TestMemoryOfEverything' .
endef

## churn: a thousand pod starts and ends, simulated and with a real kubelet; as root
define suite-churn
PODGAUGE_CHURN=1000 go test -count=1 -timeout 20m -v -run 'TestChurn$$' ./internal/app
$(e2e-setup) && PODGAUGE_CHURN=1000 $(e2e-test) -v -run 'TestChurn$$' .
endef

## xids: latency from the driver's Xid report to the kubelet, 200 times; as root
define suite-xids
$(e2e-setup) && PODGAUGE_XIDS=200 $(e2e-test) -v -run 'TestEventLatency$$' .
endef

## tutorial: the commands of docs/getting-started/tutorial.md as they stand, and their output; as root
define suite-tutorial
cd test/e2e && PODGAUGE_TUTORIAL=1 go test -count=1 -timeout 90m -v -run 'TestTutorial$$' ./tutorial
endef

## image: podgauge from the archives of make image, without capabilities; as root
define suite-image
$(call install,runc qemu-aarch64-static,runc qemu-user-static)
cd test/e2e && PODGAUGE_IMAGES="$(IMAGES)" go test -count=1 -v -run TestImages ./image
endef

## release: a release, published to a local registry, signed with a new key, and verified; BASES=local as for image
define suite-release
VERSION=$(RELEASE) deploy/release/check.sh
endef

## dashboards: dashboard queries and alert rules in a real Prometheus, and dashboards against Grafana's schema
define suite-dashboards
$(call install,prometheus promtool npm,prometheus npm)
promtool check rules $(filter-out %_test.yaml %.owner-labels.yaml,$(wildcard deploy/rules/*.yaml))
promtool test rules deploy/rules/*_test.yaml
cd test/observability/dashboards/schema && npm ci --ignore-scripts --no-audit --no-fund
PODGAUGE_DASHBOARDS=1 go test -count=1 -timeout 20m -v ./test/observability/dashboards
PODGAUGE_DASHBOARDS=1 go -C kube test -count=1 -v -run Prometheus ./internal/migrate
endef

## collector: the mapping of docs/how-to/integrate.md to OpenTelemetry, with the Collector's processor
define suite-collector
cd test/observability/collector && go test -count=1 -v .
endef

## fleet: rules and dashboards with 500 nodes in a real Prometheus, for 20 minutes; needs 6 GB of memory and a quiet machine
define suite-fleet
$(call install,prometheus promtool,prometheus)
PODGAUGE_FLEET=1 go test -count=1 -timeout 40m -v -run 'TestFleet$$' ./test/observability/dashboards
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
PODGAUGE_PEERS=$(PEERS) go test -count=1 -run 'TestPeerFields$$' ./test/repo
PODGAUGE_PEERS=$(PEERS) go test -count=1 -timeout 4h -v -run 'TestPeers$$' ./test/observability/peers -write $(if $(HOUR),-hour)
endef
