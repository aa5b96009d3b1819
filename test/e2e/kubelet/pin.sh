#!/bin/sh
# pin.sh v1.38.0 writes the module from which that kubelet is built. k8s.io/kubernetes takes its staging modules from its own tree with
# replace directives, which do not hold for those who require it: here each is replaced by its published version of the same number.
set -eu
version=$1
cd "$(dirname "$0")" && mkdir -p "$version" && cd "$version"
upstream=$(cd / && go mod download -json "k8s.io/kubernetes@$version" | sed -n 's/^\t"GoMod": "\(.*\)".*/\1/p')
{
	printf 'module github.com/podgauge/podgauge/test/e2e/kubelet\n\ngo 1.26.0\n\n'
	printf 'require k8s.io/kubernetes %s\n\ntool k8s.io/kubernetes/cmd/kubelet\n\nreplace (\n' "$version"
	sed -n '/^replace (/,/^)/p' "$upstream" | awk -v version="v0.${version#v1.}" '/=>/ { print "\t" $1 " => " $1 " " version }'
	echo ')'
} >go.mod
go mod tidy
