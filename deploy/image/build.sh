#!/bin/sh
# usage: VERSION=… [PROGRAM=podgauge-sim|podgauge-kube] deploy/image/build.sh [amd64] [arm64]
#
# Builds the image of the Dockerfile, by default for both architectures. Writes an OCI archive per architecture to
# bin/<program>-image-<architecture>.tar, for `ctr -n k8s.io images import`. The same commit and base images give the
# same layers.
#
# BUILDER is docker (with buildx), podman or buildah; default: the first that works on this machine.
# BUILD_TMP replaces the folder of the compiler's cache, for a build without a cache.
# BASES=local builds base images from Debian's packages and this machine's Go, under the names of the Dockerfile, for
# machines without access to a registry. It requires buildah and root.
set -eu
cd "$(dirname "$0")/../.."

: "${VERSION:?}" "${BASES:=pulled}" "${PROGRAM:=podgauge}"
image=ghcr.io/podgauge/$PROGRAM:$VERSION
revision=$(git rev-parse HEAD 2>/dev/null || echo unknown)
# Files and configuration have the time of the commit, not of the build.
: "${SOURCE_DATE_EPOCH:=$(git log -1 --format=%ct 2>/dev/null || echo 0)}"
export SOURCE_DATE_EPOCH

# ours is buildah with separate storage.
cache=${XDG_CACHE_HOME:-$HOME/.cache}/podgauge-image
export BUILDAH_ISOLATION="${BUILDAH_ISOLATION:-chroot}" TMPDIR="${BUILD_TMP:-$cache/tmp}"
ours() { buildah --root "$cache/storage" --runroot "$cache/run" "$@"; }

works() {
    case $1 in
        docker) docker buildx version && docker info ;;
        podman) podman info ;;
        buildah) command -v buildah ;;
    esac >/dev/null 2>&1
}

# builder prints the builder, and installs buildah if none works.
builder() {
    case ${BUILDER:-buildah} in
        docker | podman | buildah) ;;
        *) echo "BUILDER=$BUILDER: expected docker, podman or buildah" >&2; exit 2 ;;
    esac
    for b in ${BUILDER:-docker podman buildah}; do
        if works "$b"; then echo "$b"; return; fi
    done
    [ "${BUILDER:-buildah}" = buildah ] || { echo "$BUILDER does not work here" >&2; exit 1; }
    install buildah
    echo buildah
}

# install installs a program from the Debian package of the same name.
install() {
    command -v "$1" >/dev/null && return
    { apt-get update -q && DEBIAN_FRONTEND=noninteractive apt-get install -q -y --no-install-recommends "$1"; } >&2
}

# archives reports whether docker's builder writes OCI archives: docker's own builder requires containerd's storage.
archives() {
    [ "$(docker buildx inspect | sed -n 's/^Driver: *//p')" != docker ] ||
        docker info --format '{{.DriverStatus}}' | grep -q io.containerd.snapshotter
}

# build writes the image of an architecture to a file.
build() {
    arch=$1 archive=$2
    set -- --platform "linux/$arch" --build-arg "VERSION=$VERSION" --build-arg "REVISION=$revision" --build-arg "PROGRAM=$PROGRAM"
    if [ "$with" != docker ]; then # docker sets the platform, and file times by SOURCE_DATE_EPOCH
        set -- "$@" --build-arg "BUILDPLATFORM=linux/$(go env GOHOSTARCH)" --format oci --identity-label=false \
            --timestamp "$SOURCE_DATE_EPOCH" --tag "$image"
    fi
    case $with in
        docker)
            docker buildx build $builder "$@" --provenance=false --output "type=oci,dest=$archive,name=$image,rewrite-timestamp=true" .
            ;;
        podman)
            podman build "$@" .
            podman save --format oci-archive --output "$archive" "$image"
            podman rmi "$image"
            ;;
        buildah)
            if [ "$BASES" = local ]; then base "$arch"; fi
            ours bud --file "$dockerfile" "$@" $pull .
            ours push "$image" "oci-archive:$archive:$image"
            ours rmi "$image"
            ;;
    esac
}

mkdir -p bin "$TMPDIR"
pull='' dockerfile=Dockerfile
if [ "$BASES" = local ]; then
    BUILDER=buildah pull=--pull-never dockerfile=bin/Dockerfile
    . deploy/image/bases.sh
fi
with=$(builder)
if [ "$with" = buildah ]; then
    exec 9>"$cache/lock" # a name in the storage has one architecture at a time
    flock 9
    ours rm --all >/dev/null # leftovers of interrupted builds
fi
builder=
if [ "$with" = docker ] && ! archives; then
    docker buildx rm podgauge-image 2>/dev/null || : # leftover of an interrupted build
    docker buildx create --name podgauge-image --driver docker-container
    trap 'docker buildx rm podgauge-image' EXIT
    builder="--builder podgauge-image"
fi
if [ "$BASES" = local ]; then install debootstrap; fi
[ $# -gt 0 ] || set -- amd64 arm64
for arch in "$@"; do
    archive=bin/$PROGRAM-image-$arch.tar
    rm -f "$archive"
    build "$arch" "$archive"
    echo "$archive: $image"
done
