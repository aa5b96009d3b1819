package main

import (
	"bytes"
	"debug/buildinfo"
	"debug/elf"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"path"
	"regexp"
	"slices"
	"strings"
)

// programPath is where an image has podgauge, or podgauge-sim.
const programPath = "/usr/bin/podgauge"

// registry is where the images are.
const registry = "ghcr.io/podgauge/"

// simulatorName is podgauge on a simulated machine, which has an image of its own.
const simulatorName = "podgauge-sim"

// elfMachines are the architectures that there are images for, as Go calls them and as ELF does.
var elfMachines = map[string]elf.Machine{"amd64": elf.EM_X86_64, "arm64": elf.EM_AARCH64}

// imageCheck is one thing that must hold for an image.
type imageCheck struct {
	name string
	// run looks. The text is what it has found.
	run func(*ociImage) (string, error)
}

var imageChecks = []imageCheck{
	{"name", checkName},
	{"start", checkStart},
	{"labels", checkLabels},
	{"programs", checkContents},
	{"permissions", checkPermissions},
	{"architecture", checkArchitecture},
	{"lazy binding", checkLazyBinding},
	{"libraries", checkLibraries},
	{"build info", checkBuildInfo},
	{"packages", checkPackages},
	{"licence", checkLicense},
}

// checkName: containerd imports the image under a name with the version that its label has.
func checkName(img *ociImage) (string, error) {
	want := registry + img.programName() + ":" + img.config.Config.Labels["org.opencontainers.image.version"]
	if img.name != want {
		return "", fmt.Errorf("it is %q, want %q", img.name, want)
	}
	return img.name, nil
}

// checkStart: podgauge and nothing else, as uid 0, with no variable that asks for GPUs.
func checkStart(img *ociImage) (string, error) {
	c := img.config.Config
	switch {
	case !slices.Equal(c.Entrypoint, []string{programPath}) || len(c.Cmd) > 0:
		return "", fmt.Errorf("it starts %q %q, want %s", c.Entrypoint, c.Cmd, programPath)
	case c.User != "0:0":
		return "", fmt.Errorf("the user is %q, want 0:0: the kubelet's pod-resources folder is root's", c.User)
	}
	for _, variable := range c.Env {
		if strings.HasPrefix(variable, "NVIDIA_") {
			return "", fmt.Errorf("%s: pods ask for GPUs, and not the image", variable)
		}
	}
	return fmt.Sprintf("%s as %s", programPath, c.User), nil
}

// wantLabels are patterns, of the whole value.
// https://github.com/opencontainers/image-spec/blob/main/annotations.md
var wantLabels = map[string]string{
	"title":         "podgauge",
	"description":   ".*GPUs.*",
	"source":        "https://github.com/podgauge/podgauge",
	"documentation": "https://.*",
	"licenses":      "Apache-2.0",
	"base.name":     `gcr\.io/distroless/base-nossl-debian\d+`,
	"version":       `v?[0-9a-f][\w.-]*`,
	"revision":      "[0-9a-f]{40}",
}

func checkLabels(img *ociImage) (string, error) {
	var errs []error
	for _, name := range slices.Sorted(maps.Keys(wantLabels)) {
		value := img.config.Config.Labels["org.opencontainers.image."+name]
		if !regexp.MustCompile("^(?:" + wantLabels[name] + ")$").MatchString(value) {
			errs = append(errs, fmt.Errorf("%s is %q, want %s", name, value, wantLabels[name]))
		}
	}
	return fmt.Sprintf("%d of them", len(wantLabels)), errors.Join(errs...)
}

// forbiddenPrograms are what lets somebody look around who should not, wherever it lies.
var forbiddenPrograms = []string{"ash", "bash", "busybox", "dash", "ksh", "sh", "toybox", "zsh", "apt", "apt-get", "dpkg", "perl", "python3"}

// checkContents: there is nothing to run but podgauge and the dynamic linker, which the base brings with its C library.
func checkContents(img *ociImage) (string, error) {
	var errs []error
	for _, name := range slices.Sorted(maps.Keys(img.files)) {
		f := img.files[name]
		if f.mode.IsDir() || name == programPath {
			continue
		}
		folder := path.Base(path.Dir(name))
		switch {
		case slices.Contains(forbiddenPrograms, path.Base(name)):
			errs = append(errs, fmt.Errorf("%s", name))
		case (folder == "bin" || folder == "sbin") && !isLibrary(img, name):
			errs = append(errs, fmt.Errorf("%s", name))
		case f.executable() && bytes.HasPrefix(f.content, []byte("\x7fELF")) && !isLibrary(img, name):
			errs = append(errs, fmt.Errorf("%s can be run", name))
		}
	}
	return "podgauge alone", errors.Join(errs...)
}

// isLibrary: the C library and the dynamic linker are executable, and say only what they are.
func isLibrary(img *ociImage, name string) bool {
	_, at, found := img.followLinks(name)
	return found && regexp.MustCompile(`^/usr/lib/[^/]+/(ld-linux-[^/]+|libc)\.so\.\d+$`).MatchString(at)
}

// checkPermissions: nothing gives rights that its caller has not, and nothing but /tmp can be written to by everybody.
func checkPermissions(img *ociImage) (string, error) {
	var errs []error
	for _, name := range slices.Sorted(maps.Keys(img.files)) {
		f := img.files[name]
		if f.mode&(fs.ModeSetuid|fs.ModeSetgid) != 0 && !f.mode.IsDir() {
			errs = append(errs, fmt.Errorf("%s is %v", name, f.mode))
		}
		if f.xattrs["SCHILY.xattr.security.capability"] != "" {
			errs = append(errs, fmt.Errorf("%s has capabilities", name))
		}
		sticky := f.mode.IsDir() && f.mode&fs.ModeSticky != 0
		if f.mode&fs.ModeSymlink == 0 && f.mode.Perm()&0o002 != 0 && !sticky {
			errs = append(errs, fmt.Errorf("%s is %v: everybody may write", name, f.mode))
		}
	}
	if f := img.files[programPath]; f == nil || f.mode.Perm() != 0o755 || f.uid != 0 || f.gid != 0 {
		errs = append(errs, fmt.Errorf("%s is not root's with mode 0755", programPath))
	}
	return fmt.Sprintf("%d files and folders", len(img.files)), errors.Join(errs...)
}

// checkBuildInfo: `go version -m` says what the binary is made of, and nothing where.
func checkBuildInfo(img *ociImage) (string, error) {
	f, found := img.files[programPath]
	if !found {
		return "", fmt.Errorf("%s is missing", programPath)
	}
	info, err := buildinfo.Read(bytes.NewReader(f.content))
	if err != nil {
		return "", err
	}
	set := map[string]string{}
	for _, s := range info.Settings {
		set[s.Key] = s.Value
	}
	var errs []error
	for key, want := range map[string]string{
		"-trimpath": "true", "-tags": "grpcnotrace", "CGO_ENABLED": "1", "GOOS": "linux", "GOARCH": img.config.Architecture,
	} {
		if set[key] != want {
			errs = append(errs, fmt.Errorf("%s is %q, want %q", key, set[key], want))
		}
	}
	if want := "github.com/podgauge/podgauge/cmd/" + img.programName(); info.Path != want {
		errs = append(errs, fmt.Errorf("it is %s, want %s", info.Path, want))
	}
	return fmt.Sprintf("%s, %d modules", info.GoVersion, len(info.Deps)), errors.Join(errs...)
}

// checkPackages: scanners find the packages of the base, and certificates are there.
func checkPackages(img *ociImage) (string, error) {
	var found []string
	for _, name := range []string{"base-files", "ca-certificates", "libc6", "tzdata"} {
		f, has := img.files["/var/lib/dpkg/status.d/"+name]
		if !has {
			return "", fmt.Errorf("%s is not listed", name)
		}
		version := regexp.MustCompile(`(?m)^Version: (\S+)$`).FindSubmatch(f.content)
		if version == nil {
			return "", fmt.Errorf("%s has no version", name)
		}
		found = append(found, name+" "+string(version[1]))
	}
	f, _, has := img.followLinks("/etc/ssl/certs/ca-certificates.crt")
	if !has || !bytes.Contains(f.content, []byte("BEGIN CERTIFICATE")) {
		return "", errors.New("no certificates")
	}
	return strings.Join(found, ", "), nil
}

// checkLicense: the licence goes where the program goes.
func checkLicense(img *ociImage) (string, error) {
	const name = "/usr/share/doc/podgauge/LICENSE"
	if f, found := img.files[name]; !found || !bytes.Contains(f.content, []byte("Apache License")) {
		return "", fmt.Errorf("%s is not the licence", name)
	}
	return name, nil
}
