# The container images of podgauge, podgauge-sim and podgauge-kube, for amd64 and arm64: `make image PROGRAM=…`. The
# program of each image is /usr/bin/podgauge, as `make build` builds it; test/e2e/image compares both.

# Base images are pinned to the digests of their multi-arch indexes; .github/dependabot.yml updates them.

# The compiler runs on the build platform, without emulation.
FROM --platform=$BUILDPLATFORM docker.io/library/golang:1.26-trixie@sha256:0e214333a799b48cce126b20a906cbbcaacd04f55dd54aa22f050fbd9462965a AS build
ARG TARGETARCH
# C compiler and glibc for cross-compilation.
RUN set -eu; \
    case "$TARGETARCH" in \
        "$(dpkg --print-architecture)") exit 0 ;; \
        amd64) gcc=gcc-x86-64-linux-gnu ;; \
        arm64) gcc=gcc-aarch64-linux-gnu ;; \
        *) echo "no image for $TARGETARCH" >&2; exit 1 ;; \
    esac; \
    apt-get update -q; \
    apt-get install -q -y --no-install-recommends "$gcc" "libc6-dev-$TARGETARCH-cross"; \
    rm -rf /var/lib/apt/lists/*
WORKDIR /src
COPY . .
# The Makefile explains these flags.
ENV CGO_ENABLED=1 CGO_LDFLAGS="-Wl,-z,lazy" CGO_CFLAGS="-g -O2 -Wno-deprecated-declarations"
ARG VERSION=dev
# podgauge-sim has an image of its own, which keeps 8 MB out of podgauge's. podgauge-kube is in the module of the clients
# of the API server; it loads no library, so it is linked statically.
ARG PROGRAM=podgauge
RUN --mount=type=cache,target=/go/pkg/mod --mount=type=cache,target=/root/.cache/go-build \
    if [ "$PROGRAM" = podgauge-kube ]; then \
        cd kube && CGO_ENABLED=0 GOARCH=$TARGETARCH go build -trimpath -ldflags "-s -w -X main.version=$VERSION" -o /out/podgauge ./cmd/$PROGRAM; exit; \
    fi; \
    case "$TARGETARCH" in amd64) CC=x86_64-linux-gnu-gcc ;; arm64) CC=aarch64-linux-gnu-gcc ;; esac; \
    CC=$CC GOARCH=$TARGETARCH go build -trimpath -ldflags "-s -w -X github.com/podgauge/podgauge/internal/app.version=$VERSION" -o /out/podgauge ./cmd/$PROGRAM

# The libnvidia-ml.so.1 that NVIDIA's runtime injects requires glibc. No shell and no ldconfig: the runtime updates the
# linker's cache itself. Scanners find the packages in /var/lib/dpkg/status.d. Without the explicit platform, buildah 1.28
# uses the build platform.
FROM --platform=$TARGETPLATFORM gcr.io/distroless/base-nossl-debian13:latest@sha256:af5cb8dd589b8520b8c06bebb9efb73d7e16406cab58e85c51761fff49d370a0
COPY LICENSE /usr/share/doc/podgauge/LICENSE
COPY --from=build /out/podgauge /usr/bin/podgauge
# The kubelet's pod-resources folder belongs to root (0750): uid 0 has access without a capability.
USER 0:0
# No NVIDIA_VISIBLE_DEVICES: under NVIDIA's runtime, each container of this image would receive all GPUs, and would not
# start without a driver. Pods set it instead (docs/how-to/driver.md).
EXPOSE 9400
ENTRYPOINT ["/usr/bin/podgauge"]
ARG VERSION=dev
ARG REVISION=unknown
LABEL org.opencontainers.image.title="podgauge" \
      org.opencontainers.image.description="NVIDIA GPU device plugin and Prometheus exporter with per-pod attribution" \
      org.opencontainers.image.source="https://github.com/podgauge/podgauge" \
      org.opencontainers.image.documentation="https://github.com/podgauge/podgauge/tree/main/docs" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.base.name="gcr.io/distroless/base-nossl-debian13:latest" \
      org.opencontainers.image.version="$VERSION" \
      org.opencontainers.image.revision="$REVISION"
