#!/bin/sh
# usage: VERSION=v1.2.3 deploy/release/check.sh
#
# Tests a release without a remote registry: builds it, publishes it to a registry on the loopback address, signs it with a new key,
# and verifies it as a user would. BASES=local is as for deploy/image/build.sh.
set -eu
cd "$(dirname "$0")/../.."

deploy/release/build.sh
. deploy/release/lib.sh
tmp=$PWD/bin/release/tmp

# fails runs a command that must fail.
fails() {
    if "$@" >"$tmp/fails.log" 2>&1; then die "succeeds, and must fail: $*"; fi
}

host=$(go env GOHOSTARCH)
archive=bin/podgauge-image-$host.tar
digest() { tar -xOf "$archive" index.json | grep -o 'sha256:[0-9a-f]*'; }
first=$(digest)
mkdir "$tmp/cache"
BUILD_TMP=$tmp/cache deploy/image/build.sh "$host"
[ "$(digest)" = "$first" ] || die "two builds of one commit differ: $first, $(digest)"
echo "same digest twice: $first"

export COSIGN_PASSWORD=
cosign generate-key-pair --output-key-prefix "$tmp/release"
cosign generate-key-pair --output-key-prefix "$tmp/other"
serve "$tmp/remote"
SIGN="--key $tmp/release.key --use-signing-config=false --tlog-upload=false" deploy/release/publish.sh "$registry"

# verify runs a cosign command with a public key, given by name.
verify() {
    command=$1 key=$2
    shift 2
    cosign "$command" --key "$tmp/$key.pub" --insecure-ignore-tlog=true "$@" >"$tmp/verify.log" 2>&1 || { cat "$tmp/verify.log"; return 1; }
}

while read -r ref; do
    verify verify release "$ref"
    fails verify verify other "$ref"
    echo "verified: $ref"
    case $ref in */charts/*) continue ;; esac
    crane validate --remote "$ref"
    for arch in ${ARCH:-amd64 arm64}; do
        image=$(crane digest --platform "linux/$arch" "$ref")
        verify verify-attestation release --type spdxjson "${ref%@*}@$image"
        fails verify verify-attestation other --type spdxjson "${ref%@*}@$image"
    done
done <bin/release/pushed.txt
[ "$(wc -l <bin/release/pushed.txt)" = 4 ] || die "pushed.txt lacks a line"

verify verify-blob release --bundle "$files/checksums.txt.sigstore.json" "$files/checksums.txt"
{ cat "$files/checksums.txt" && echo; } >"$tmp/changed.txt"
fails verify verify-blob release --bundle "$files/checksums.txt.sigstore.json" "$tmp/changed.txt"
(cd "$files" && sha256sum --check --quiet checksums.txt)

helm pull --plain-http "oci://$registry/charts/podgauge" --version "$number" --destination "$tmp"
cmp "$tmp/podgauge-$number.tgz" "$files/podgauge-$number.tgz"
if helm show readme "$tmp/podgauge-$number.tgz" | grep -n '](\.\|](examples'; then die "the chart's README has relative links"; fi
helm template podgauge "$tmp/podgauge-$number.tgz" | grep -q "image: \"\?ghcr.io/podgauge/podgauge:$VERSION\"\?$" || die "the chart has a different image"

image=$(sed -n 1p bin/release/pushed.txt)
grep -q "image: \"ghcr.io/podgauge/podgauge:$VERSION@${image#*@}\"" "$files/podgauge.yaml" || die "the manifest lacks the pushed image $image"

images=
for arch in ${ARCH:-amd64 arm64}; do images="$images $PWD/bin/podgauge-image-$arch.tar $PWD/bin/podgauge-sim-image-$arch.tar $PWD/bin/podgauge-kube-image-$arch.tar"; done
PODGAUGE_IMAGES=$images go test -C test/e2e -count=1 -run 'TestImages$' ./image
PODGAUGE_RELEASE=$PWD/bin/release VERSION=$VERSION go test -C test/e2e -count=1 -v -run 'TestRelease$' ./release
