#!/bin/sh
# usage: VERSION=v1.2.3 deploy/release/build.sh
#
# Builds the files of a release in bin/release/files, and the multi-arch images as OCI layouts in bin/release/oci.
# The programs for Linux nodes are copied from the images, so both are identical.
set -eu
cd "$(dirname "$0")/../.."
. deploy/release/lib.sh

: "${ARCH:=amd64 arm64}"
grep -qx "appVersion: $VERSION" deploy/helm/podgauge/Chart.yaml || die "appVersion in Chart.yaml is not $VERSION"
grep -qx "version: $number" deploy/helm/podgauge/Chart.yaml || die "version in Chart.yaml is not $number"
grep -q "^## $number\b" CHANGELOG.md || die "CHANGELOG.md has no entry $number"

rm -rf bin/release
mkdir -p "$files" "$oci" bin/release/tmp

# pack writes a tar.gz of a program and the license, with the commit's time and without user names.
pack() {
    program=$1 platform=$2 from=$3
    tar -c --sort=name --mtime="@$SOURCE_DATE_EPOCH" --owner=0 --group=0 --numeric-owner --mode=u+rw,go-w,a+rX \
        -C "$from" "$program" -C "$PWD" LICENSE | gzip -9n >"$files/${program}_${number}_$platform.tar.gz"
}

for program in podgauge podgauge-sim podgauge-kube; do
    # shellcheck disable=SC2086 # a list
    VERSION=$VERSION PROGRAM=$program deploy/image/build.sh $ARCH
done

serve bin/release/tmp/registry
for program in podgauge podgauge-sim podgauge-kube; do
    manifests=
    for arch in $ARCH; do
        dir=bin/release/tmp/$program-$arch
        mkdir -p "$dir/layout" "$dir/root"
        tar -xf "bin/$program-image-$arch.tar" -C "$dir/layout"
        manifests="$manifests --manifest $(crane push "$dir/layout" "$registry/$program:$arch")"
        crane export "$registry/$program:$arch" - | tar -x -C "$dir/root" usr/bin/podgauge
        mv "$dir/root/usr/bin/podgauge" "$dir/$program"
        pack "$program" "linux_$arch" "$dir"
        syft scan -q "oci-archive:bin/$program-image-$arch.tar" --source-name "$program" --source-version "$VERSION" \
            -o "spdx-json=$files/${program}_${number}_linux_$arch.spdx.json"
    done
    # shellcheck disable=SC2086 # a list
    crane index append $manifests --tag "$registry/$program:$VERSION"
    crane pull --format oci "$registry/$program:$VERSION" "$oci/$program"
done
# A tag can move; the digest cannot.
tagged=ghcr.io/podgauge/podgauge:$VERSION
sed "s#image: \"$tagged\"#image: \"$tagged@$(crane digest "$registry/podgauge:$VERSION")\"#" deploy/podgauge.yaml >"$files/podgauge.yaml"
grep -q "image: \"$tagged@sha256:[0-9a-f]\{64\}\"" "$files/podgauge.yaml" || die "deploy/podgauge.yaml has no image $tagged"

for platform in linux_amd64 linux_arm64 darwin_amd64 darwin_arm64; do
    dir=bin/release/tmp/kubectl-$platform program=kubectl-podgauge
    CGO_ENABLED=0 GOOS=${platform%_*} GOARCH=${platform#*_} go -C kube build -o "$PWD/$dir/$program" -trimpath -ldflags "-s -w -X main.version=$VERSION" ./cmd/kubectl-podgauge
    pack "$program" $platform "$dir"
    syft scan -q "file:$dir/$program" --source-name kubectl-podgauge --source-version "$VERSION" \
        -o "spdx-json=$files/kubectl-podgauge_${number}_$platform.spdx.json"
done

# Links in the README of the packaged chart lead to the repository.
cp -r deploy/helm/podgauge bin/release/tmp/chart
at=https://github.com/podgauge/podgauge/blob/$VERSION
sed -i "s#](\(\.\./\)\{3\}#]($at/#g; s#](examples)#]($at/deploy/helm/podgauge/examples)#g" bin/release/tmp/chart/README.md
helm package bin/release/tmp/chart --destination "$files"
cd "$files"
sha256sum -- * >../checksums.txt
mv ../checksums.txt .
