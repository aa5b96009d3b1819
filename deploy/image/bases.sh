# Builds the base images of the Dockerfile from Debian's packages and this machine's Go. build.sh sources this file, which
# uses its function `ours` and its variable `dockerfile`.

# A local image has no digest of the registry.
sed 's/@sha256:[0-9a-f]*//' Dockerfile >"$dockerfile"

compiler=$(sed -n 's/^FROM --platform=$BUILDPLATFORM \(.*\) AS build$/\1/p' "$dockerfile")
final=$(sed -n 's/^FROM --platform=$TARGETPLATFORM //p' "$dockerfile")
suite=${compiler##*-}
go=$(go env GOVERSION)

# base builds missing base images, and tags those of an architecture with the names of the Dockerfile. A storage has one
# image per name, so the final base image is of one architecture at a time.
base() {
    exists "local/compiler:$go-$suite" || make_compiler
    exists "local/final:$suite-$1" || make_final "$1"
    ours tag "local/compiler:$go-$suite" "$compiler"
    ours tag "local/final:$suite-$1" "$final"
}

exists() { ours inspect --type image "$1" >/dev/null 2>&1; }

# make_compiler builds an image with Debian, a C compiler and Go, like the golang image.
make_compiler() {
    c=$(ours from scratch)
    root=$(ours mount "$c")
    debootstrap --variant=minbase --include=ca-certificates,gcc,libc6-dev "$suite" "$root"
    rm -rf "$root"/var/cache/apt/archives/*.deb
    cp -a "$(go env GOROOT)" "$root/usr/local/go"
    # The machine's certificates, because its connection to the module proxy may use a proxy with a private certificate.
    cp "${SSL_CERT_FILE:-/etc/ssl/certs/ca-certificates.crt}" "$root/etc/ssl/certs/ca-certificates.crt"
    ours config --env PATH=/usr/local/go/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin \
        --env GOPATH=/go --env GOTOOLCHAIN=local --workingdir /go "$c"
    ours commit --rm "$c" "local/compiler:$go-$suite"
}

# make_final builds an image with the packages of distroless's base-nossl. They are unpacked and not installed, so no
# program of another architecture has to run.
make_final() {
    from=$(ours from --pull-never "local/compiler:$go-$suite")
    ours run "$from" -- sh -c "$unpack" unpack "$1"
    c=$(ours from scratch)
    cp -a "$(ours mount "$from")/final/." "$(ours mount "$c")/"
    ours rm "$from"
    ours config --os linux --arch "$1" --user 0 --workingdir / --env SSL_CERT_FILE=/etc/ssl/certs/ca-certificates.crt \
        --env PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin "$c"
    ours commit --rm "$c" "local/final:$suite-$1"
}

# unpack runs in the compiler's image. Scanners read the packages of an image without dpkg from status.d.
unpack='set -eu
dpkg --add-architecture "$1"
apt-get update -q
mkdir -p /debs /final/var/lib/dpkg/status.d
cd /debs
apt-get download -q base-files:"$1" libc6:"$1" ca-certificates media-types netbase tzdata
for deb in *.deb; do
    dpkg-deb -x "$deb" /final
    dpkg-deb -f "$deb" > "/final/var/lib/dpkg/status.d/${deb%%_*}"
done
cd /final
rm -rf usr/share/man usr/share/locale usr/share/lintian usr/share/bug usr/sbin/update-ca-certificates
find usr/share/doc -type f ! -name copyright -delete
cat usr/share/ca-certificates/*/*.crt > etc/ssl/certs/ca-certificates.crt
printf "root:x:0:0:root:/root:/sbin/nologin\nnobody:x:65534:65534:nobody:/nonexistent:/sbin/nologin\nnonroot:x:65532:65532:nonroot:/home/nonroot:/sbin/nologin\n" > etc/passwd
printf "root:x:0:\nnobody:x:65534:\ntty:x:5:\nstaff:x:50:\nnonroot:x:65532:\n" > etc/group
printf "hosts: files dns\n" > etc/nsswitch.conf
chmod 1777 tmp
'
