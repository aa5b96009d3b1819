#!/bin/sh
# usage: VERSION=v1.2.3 [SIGN="--key cosign.key"] deploy/release/publish.sh REGISTRY
#
# Pushes the output of build.sh in bin/release to REGISTRY (ghcr.io/podgauge) and signs it: images with an attested SBOM per
# architecture, the chart, and the list of checksums. Without SIGN, signatures are keyless, by the workflow's identity.
# Each pushed reference with its digest is a line in bin/release/pushed.txt.
set -eu
cd "$(dirname "$0")/../.."
. deploy/release/lib.sh
registry=$1

plain=
case $registry in
    127.0.0.1:*) plain=--plain-http ;;
    *) ! grep -q "^## $number (unreleased)" CHANGELOG.md || die "CHANGELOG.md: the entry $number has no date" ;;
esac

# sign runs a cosign command with the options of SIGN.
# shellcheck disable=SC2086 # a list
sign() { cosign "$@" --yes ${SIGN:-}; }

: >bin/release/pushed.txt
for program in podgauge podgauge-sim podgauge-kube; do
    image=$(crane push "$oci/$program" "$registry/$program:$VERSION")
    echo "$image" >>bin/release/pushed.txt
    sign sign "$image"
    for sbom in "$files/${program}_${number}"_linux_*.spdx.json; do
        arch=${sbom##*_linux_}
        digest=$(crane digest --platform "linux/${arch%.spdx.json}" "$image")
        sign attest --type spdxjson --predicate "$sbom" "$registry/$program@$digest"
    done
done

# shellcheck disable=SC2086 # empty or one flag
helm push $plain "$files/podgauge-$number.tgz" "oci://$registry/charts"
chart=$registry/charts/podgauge@$(crane digest "$registry/charts/podgauge:$number")
echo "$chart" >>bin/release/pushed.txt
sign sign "$chart"

sign sign-blob --bundle "$files/checksums.txt.sigstore.json" "$files/checksums.txt"
