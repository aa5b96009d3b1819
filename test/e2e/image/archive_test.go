package image

import (
	"archive/tar"
	"bytes"
	"cmp"
	"debug/buildinfo"
	"debug/elf"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os/exec"
	"path"
	"regexp"
	"slices"
	"strings"
	"testing"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/validate"
)

// ociImage is the image in an OCI archive.
type ociImage struct {
	name   string
	config v1.ConfigFile
	// files is the file system by absolute path, with unresolved links.
	files map[string]*imageFile
	// compressed is the size of all layers in bytes, and uncompressed the size of all files.
	compressed, uncompressed int64
}

// imageFile is a file of the image. The mode includes the file type.
type imageFile struct {
	mode     fs.FileMode
	uid, gid int
	link     string // target of a symbolic link
	xattrs   map[string]string
	content  []byte
}

// programName returns the name of the image's command.
func (img *ociImage) programName() string {
	for _, name := range []string{simulatorName, kubeName} {
		if strings.HasPrefix(img.name, registry+name+":") {
			return name
		}
	}
	return "podgauge"
}

func (f *imageFile) executable() bool { return f.mode.IsRegular() && f.mode&0o111 != 0 }

// readImage reads an archive with one image, and checks all digests.
func readImage(t *testing.T, archive string) *ociImage {
	t.Helper()
	dir := t.TempDir()
	if out, err := exec.Command("tar", "-xf", archive, "-C", dir).CombinedOutput(); err != nil {
		t.Fatalf("unpack %s: %v: %s", archive, err, out)
	}
	img, err := readLayout(dir)
	if err != nil {
		t.Fatalf("read %s: %v", archive, err)
	}
	return img
}

// readLayout reads a folder in the image layout.
func readLayout(dir string) (*ociImage, error) {
	index, err := layout.ImageIndexFromPath(dir)
	if err != nil {
		return nil, err
	}
	manifest, err := index.IndexManifest()
	if err != nil {
		return nil, err
	}
	if len(manifest.Manifests) != 1 {
		return nil, fmt.Errorf("index.json has %d images, want 1", len(manifest.Manifests))
	}
	image, err := index.Image(manifest.Manifests[0].Digest)
	if err == nil {
		err = validate.Image(image)
	}
	if err != nil {
		return nil, err
	}
	config, err := image.ConfigFile()
	if err != nil {
		return nil, err
	}
	annotations := manifest.Manifests[0].Annotations
	name := cmp.Or(annotations["io.containerd.image.name"], annotations["org.opencontainers.image.ref.name"]) // as containerd
	img := &ociImage{name: name, config: *config, files: map[string]*imageFile{}}
	layers, err := image.Layers()
	for _, layer := range layers {
		size, sizeErr := layer.Size()
		err = errors.Join(err, sizeErr)
		img.compressed += size
	}
	contents := mutate.Extract(image)
	defer contents.Close()
	return img, errors.Join(err, img.addFiles(tar.NewReader(contents)))
}

func (img *ociImage) addFiles(files *tar.Reader) error {
	for {
		header, err := files.Next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		var content []byte
		if err == nil {
			content, err = io.ReadAll(files)
		}
		if err != nil {
			return err
		}
		name := path.Join("/", header.Name)
		img.uncompressed += int64(len(content))
		img.files[name] = &imageFile{
			mode: header.FileInfo().Mode(), uid: header.Uid, gid: header.Gid, link: header.Linkname, xattrs: header.PAXRecords, content: content,
		}
		if header.Typeflag == tar.TypeLink {
			target, found := img.files[path.Join("/", header.Linkname)]
			if !found {
				return fmt.Errorf("%s is a link to a missing file, %s", name, header.Linkname)
			}
			img.files[name] = target
		}
	}
}

// followLinks resolves symbolic links as the kernel does with the image as root, and returns the file and its path.
func (img *ociImage) followLinks(name string) (*imageFile, string, bool) {
	at := "/"
	rest := strings.Split(strings.Trim(name, "/"), "/")
	for links := 0; len(rest) > 0; {
		next := path.Join(at, rest[0])
		f, found := img.files[next]
		switch {
		case !found || links > 40:
			return nil, "", false
		case f.mode&fs.ModeSymlink != 0:
			links++
			target := f.link
			if !path.IsAbs(target) {
				target = path.Join(at, target)
			}
			rest = append(strings.Split(strings.Trim(path.Clean(target), "/"), "/"), rest[1:]...)
			at = "/"
		default:
			at, rest = next, rest[1:]
		}
	}
	return img.files[at], at, true
}

// programPath is the path of podgauge, podgauge-sim or podgauge-kube in an image.
const programPath = "/usr/bin/podgauge"

// registry is the prefix of image names.
const registry = "ghcr.io/podgauge/"

// Commands of images besides podgauge's.
const (
	simulatorName = "podgauge-sim"
	kubeName      = "podgauge-kube"
)

// elfMachines maps Go's names of the supported architectures to ELF's.
var elfMachines = map[string]elf.Machine{"amd64": elf.EM_X86_64, "arm64": elf.EM_AARCH64}

// imageChecks are the checks of an image. They return a short description of the result.
var imageChecks = []struct {
	name string
	run  func(*ociImage) (string, error)
}{
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
	{"license", checkLicense},
}

// checkName checks that containerd imports the image under a name with the version of its label.
func checkName(img *ociImage) (string, error) {
	want := registry + img.programName() + ":" + img.config.Config.Labels["org.opencontainers.image.version"]
	if img.name != want {
		return "", fmt.Errorf("name is %q, want %q", img.name, want)
	}
	return img.name, nil
}

// checkStart checks that the image starts podgauge without arguments as uid 0, and requests no GPUs.
func checkStart(img *ociImage) (string, error) {
	c := img.config.Config
	switch {
	case !slices.Equal(c.Entrypoint, []string{programPath}) || len(c.Cmd) > 0:
		return "", fmt.Errorf("command is %q %q, want %s", c.Entrypoint, c.Cmd, programPath)
	case c.User != "0:0":
		return "", fmt.Errorf("user is %q, want 0:0: only root can read the kubelet's pod-resources folder", c.User)
	}
	for _, variable := range c.Env {
		if strings.HasPrefix(variable, "NVIDIA_") {
			return "", fmt.Errorf("%s: the image must not request GPUs", variable)
		}
	}
	return fmt.Sprintf("%s as %s", programPath, c.User), nil
}

// wantLabels maps labels to patterns of the whole value.
// https://github.com/opencontainers/image-spec/blob/main/annotations.md
var wantLabels = map[string]string{
	"title":         "podgauge",
	"description":   ".*GPU.*",
	"source":        "https://github.com/podgauge/podgauge",
	"documentation": "https://.*",
	"licenses":      "Apache-2.0",
	"base.name":     `gcr\.io/distroless/base-nossl-debian\d+:latest`,
	"version":       `v?[0-9a-f][\w.-]*`,
	"revision":      "[0-9a-f]{40}",
}

// checkLabels checks the OCI annotations of the image.
func checkLabels(img *ociImage) (string, error) {
	var errs []error
	for _, name := range slices.Sorted(maps.Keys(wantLabels)) {
		value := img.config.Config.Labels["org.opencontainers.image."+name]
		if !regexp.MustCompile("^(?:" + wantLabels[name] + ")$").MatchString(value) {
			errs = append(errs, fmt.Errorf("%s is %q, want %s", name, value, wantLabels[name]))
		}
	}
	return fmt.Sprintf("%d labels", len(wantLabels)), errors.Join(errs...)
}

// forbiddenPrograms are shells and tools that help intruders, in any folder.
var forbiddenPrograms = []string{"ash", "bash", "busybox", "dash", "ksh", "sh", "toybox", "zsh", "apt", "apt-get", "dpkg", "perl", "python3"}

// checkContents checks that podgauge and the dynamic linker of the base image are the only programs.
func checkContents(img *ociImage) (string, error) {
	var errs []error
	for _, name := range slices.Sorted(maps.Keys(img.files)) {
		f := img.files[name]
		if f.mode.IsDir() || name == programPath {
			continue
		}
		folder := path.Base(path.Dir(name))
		switch {
		case slices.Contains(forbiddenPrograms, path.Base(name)),
			(folder == "bin" || folder == "sbin") && !isLibrary(img, name),
			f.executable() && bytes.HasPrefix(f.content, []byte("\x7fELF")) && !isLibrary(img, name):
			errs = append(errs, fmt.Errorf("unexpected program: %s", name))
		}
	}
	return "podgauge only", errors.Join(errs...)
}

// isLibrary reports whether a file is the C library or the dynamic linker, which are executable but harmless.
func isLibrary(img *ociImage, name string) bool {
	_, at, found := img.followLinks(name)
	return found && regexp.MustCompile(`^/usr/lib/[^/]+/(ld-linux-[^/]+|libc)\.so\.\d+$`).MatchString(at)
}

// checkPermissions checks that no file grants privileges and that only sticky folders are world-writable.
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
			errs = append(errs, fmt.Errorf("%s is %v: world-writable", name, f.mode))
		}
	}
	if f := img.files[programPath]; f == nil || f.mode.Perm() != 0o755 || f.uid != 0 || f.gid != 0 {
		errs = append(errs, fmt.Errorf("%s is not owned by root with mode 0755", programPath))
	}
	return fmt.Sprintf("%d files and folders", len(img.files)), errors.Join(errs...)
}

// checkBuildInfo checks that the binary has build information without local paths.
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
	cgo, folder := "1", "github.com/podgauge/podgauge/cmd/"
	if img.programName() == kubeName {
		cgo, folder = "0", "github.com/podgauge/podgauge/kube/cmd/"
	}
	for key, want := range map[string]string{
		"-trimpath": "true", "CGO_ENABLED": cgo, "GOOS": "linux", "GOARCH": img.config.Architecture,
	} {
		if set[key] != want {
			errs = append(errs, fmt.Errorf("%s is %q, want %q", key, set[key], want))
		}
	}
	if want := folder + img.programName(); info.Path != want {
		errs = append(errs, fmt.Errorf("command is %s, want %s", info.Path, want))
	}
	return fmt.Sprintf("%s, %d modules", info.GoVersion, len(info.Deps)), errors.Join(errs...)
}

// checkPackages checks that scanners find the packages of the base image, and that certificates exist.
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
		return "", errors.New("certificates are missing")
	}
	return strings.Join(found, ", "), nil
}

// checkLicense checks that the image has the license.
func checkLicense(img *ociImage) (string, error) {
	const name = "/usr/share/doc/podgauge/LICENSE"
	if f, found := img.files[name]; !found || !bytes.Contains(f.content, []byte("Apache License")) {
		return "", fmt.Errorf("%s is not the license", name)
	}
	return name, nil
}

// TestDefects checks that the checks that search an image for forbidden files find each of them.
func TestDefects(t *testing.T) {
	capability := map[string]string{"SCHILY.xattr.security.capability": "\x01"}
	for _, c := range []struct {
		defect  string
		check   func(*ociImage) (string, error)
		path    string
		file    imageFile
		isValid bool
	}{
		{"none", checkContents, "/opt/x", imageFile{mode: 0o755}, true},
		{"a shell", checkContents, "/busybox/sh", imageFile{mode: 0o755}, false},
		{"a link to a shell", checkContents, "/opt/bash", imageFile{mode: fs.ModeSymlink | 0o777, link: "/opt/x"}, false},
		{"a further program", checkContents, "/usr/sbin/ldconfig", imageFile{mode: 0o755}, false},
		{"a program outside bin", checkContents, "/opt/x", imageFile{mode: 0o755, content: []byte("\x7fELF")}, false},
		{"none", checkPermissions, "/tmp", imageFile{mode: fs.ModeDir | fs.ModeSticky | 0o777}, true},
		{"setuid", checkPermissions, "/opt/x", imageFile{mode: fs.ModeSetuid | 0o755}, false},
		{"a capability", checkPermissions, "/opt/x", imageFile{mode: 0o755, xattrs: capability}, false},
		{"a world-writable folder", checkPermissions, "/opt", imageFile{mode: fs.ModeDir | 0o777}, false},
		{"another owner", checkPermissions, programPath, imageFile{mode: 0o755, uid: 1000}, false},
	} {
		img := &ociImage{files: map[string]*imageFile{programPath: {mode: 0o755}}}
		img.files[c.path] = &c.file
		if _, err := c.check(img); (err == nil) != c.isValid {
			t.Errorf("defect: %s: got error %v", c.defect, err)
		}
	}
}
