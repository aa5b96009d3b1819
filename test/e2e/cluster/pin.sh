#!/bin/sh
# pin.sh writes the module from which programs of the cluster are built: its folder, its module, the version, and the programs' packages.
#   pin.sh kubernetes k8s.io/kubernetes v1.38.0 cmd/kube-apiserver cmd/kube-controller-manager cmd/kube-scheduler cmd/kubectl
#   pin.sh helm helm.sh/helm/v4 v4.3.1 cmd/helm
#   pin.sh kube-state-metrics k8s.io/kube-state-metrics/v2 v2.20.0 .
#   pin.sh prometheus-operator github.com/prometheus-operator/prometheus-operator v0.93.1 cmd/operator cmd/prometheus-config-reloader
#   pin.sh prometheus github.com/prometheus/prometheus v0.313.1 cmd/prometheus
#   pin.sh openshift github.com/openshift/api v0.0.0-20251015095338-264e80a2b6e7
# Without packages it is a module of which only files are wanted.
# Some take modules from their own tree with replace directives, which do not hold for those who require them: here each is replaced by
# what was published with the same number, which for Kubernetes' own modules begins with v0 where its own begins with v1.
set -eu
name=$1 module=$2 version=$3
shift 3
published=$version
[ "$module" != k8s.io/kubernetes ] || published=v0.${version#v1.}
cd "$(dirname "$0")" && mkdir -p "$name/$version" && cd "$name/$version"
upstream=$(cd / && go mod download -json "$module@$version" | sed -n 's/^\t"GoMod": "\(.*\)".*/\1/p')
{
	printf 'module github.com/podgauge/podgauge/test/e2e/cluster/%s\n\ngo 1.26.0\n\nrequire %s %s\n\n' "$name" "$module" "$version"
	for package in "$@"; do printf 'tool %s\n' "$module/$package" | sed 's|/\.$||'; done
	awk -v version="$published" '$2 == "=>" && $3 ~ /^\.\// { print "replace " $1 " => " $1 " " version }' "$upstream"
} >go.mod
case $name in
prometheus-operator) go get cloud.google.com/go@v0.112.0 ;; # an older one has a package that is another module's today
esac
if [ $# -gt 0 ]; then go mod tidy; else go mod download "$module"; fi
