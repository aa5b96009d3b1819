# shellcheck shell=sh disable=SC2034,SC2064 # variables of other scripts; the trap has the current registry
# Functions of the release scripts.

: "${VERSION:?}"
number=${VERSION#v}
files=bin/release/files oci=bin/release/oci
: "${SOURCE_DATE_EPOCH:=$(git log -1 --format=%ct)}"
export SOURCE_DATE_EPOCH

die() {
    echo "$0: $*" >&2
    exit 1
}

# crane, syft, cosign and helm are built from the versions in tools/release/go.mod.
CGO_ENABLED=0 go build -modfile=tools/release/go.mod -trimpath -o bin/release-tools/ tool
PATH=$PWD/bin/release-tools:$PATH

# serve starts a registry on the loopback address that ends with the script, and sets registry to its address.
serve() {
    mkdir -p "$1"
    crane registry serve --address 127.0.0.1:0 --disk "$1" >"$1.log" 2>&1 &
    trap "kill $!" EXIT
    until registry=$(sed -n 's/.*port \([0-9]*\).*/127.0.0.1:\1/p' "$1.log") && [ -n "$registry" ]; do
        kill -0 $! 2>/dev/null || die "the registry ended: $(cat "$1.log")"
        sleep 0.2
    done
}
