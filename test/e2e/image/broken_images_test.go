package image

import (
	"bytes"
	"debug/elf"
	"encoding/binary"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"
)

// fileInfo implements fs.FileInfo for package tar.
type fileInfo struct {
	*imageFile
	name string
}

func (i fileInfo) Name() string       { return filepath.Base(i.name) }
func (i fileInfo) Size() int64        { return int64(len(i.content)) }
func (i fileInfo) Mode() fs.FileMode  { return i.mode }
func (i fileInfo) ModTime() time.Time { return time.Unix(0, 0) }
func (i fileInfo) IsDir() bool        { return i.mode.IsDir() }
func (i fileInfo) Sys() any           { return nil }

// goodImage returns a valid image with the binary of `make build` and this machine's glibc.
func goodImage(t *testing.T) *ociImage {
	t.Helper()
	img := &ociImage{name: registry + "podgauge:v1.2.3", files: map[string]*imageFile{
		"/tmp":                               {mode: fs.ModeDir | fs.ModeSticky | 0o777},
		"/lib":                               {mode: fs.ModeSymlink | 0o777, link: "usr/lib"},
		"/lib64":                             {mode: fs.ModeSymlink | 0o777, link: "usr/lib64"},
		"/etc":                               {mode: fs.ModeDir | 0o755},
		"/etc/ssl":                           {mode: fs.ModeDir | 0o755},
		"/etc/ssl/certs":                     {mode: fs.ModeDir | 0o755},
		"/etc/ssl/certs/ca-certificates.crt": {mode: 0o644, content: []byte("-----BEGIN CERTIFICATE-----\n")},
		"/usr/share/doc/podgauge/LICENSE":    {mode: 0o644, content: []byte("Apache License")},
	}}
	for _, name := range []string{"base-files", "ca-certificates", "libc6", "tzdata"} {
		img.files["/var/lib/dpkg/status.d/"+name] = &imageFile{mode: 0o644, content: []byte("Package: " + name + "\nVersion: 1-2\n")}
	}
	add := func(name, source string) {
		content, err := os.ReadFile(source)
		if err != nil {
			t.Fatalf("%v (make build)", err)
		}
		mode := fs.FileMode(0o755)
		if strings.Contains(name, "/lib/") && !strings.Contains(name, "/libc.so") && !strings.Contains(name, "/ld-") {
			mode = 0o644
		}
		img.files[name] = &imageFile{mode: mode, content: content}
		for dir := filepath.Dir(name); dir != "/"; dir = filepath.Dir(dir) {
			img.files[dir] = &imageFile{mode: fs.ModeDir | 0o755}
		}
	}
	add(programPath, "../../../bin/podgauge")
	img.config.Architecture, img.config.OS = runtime.GOARCH, "linux"
	libraries := img.libraryDir()
	for _, library := range []string{"libc.so.6", "libm.so.6", "libdl.so.2", "libpthread.so.0", "libresolv.so.2"} {
		add(libraries+"/"+library, libraries+"/"+library)
	}
	bin, err := img.openELF(programPath)
	if err != nil {
		t.Fatal(err)
	}
	loader, err := interpreter(bin)
	if err != nil {
		t.Fatal(err)
	}
	add(libraries+"/"+filepath.Base(loader), loader)
	img.files["/usr"+loader] = &imageFile{mode: fs.ModeSymlink | 0o777, link: libraries + "/" + filepath.Base(loader)}
	if dir := filepath.Dir("/usr" + loader); img.files[dir] == nil {
		img.files[dir] = &imageFile{mode: fs.ModeDir | 0o755}
	}
	c := &img.config.Config
	c.User, c.Entrypoint, c.Env = "0:0", []string{programPath}, []string{"PATH=/usr/bin"}
	c.Labels = map[string]string{}
	for name, value := range map[string]string{
		"title": "podgauge", "description": "Device plugin for NVIDIA GPUs", "source": "https://github.com/podgauge/podgauge",
		"documentation": "https://example.com", "licenses": "Apache-2.0", "base.name": "gcr.io/distroless/base-nossl-debian13:latest",
		"version": "v1.2.3", "revision": strings.Repeat("0", 40),
	} {
		c.Labels["org.opencontainers.image."+name] = value
	}
	return img
}

// brokenImages has images with one defect each, and the check that must detect the defect.
var brokenImages = []struct {
	defect, check string
	corrupt       func(img *ociImage)
}{
	{"wrong version", "name", func(img *ociImage) { img.name = registry + "podgauge:v1.2.4" }},
	{"no name", "name", func(img *ociImage) { img.name = "" }},
	{"the simulator's name", "build info", func(img *ociImage) { img.name = registry + simulatorName + ":v1.2.3" }},
	{"started by a shell", "start", func(img *ociImage) { img.config.Config.Entrypoint = []string{"sh", "-c", programPath} }},
	{"with arguments", "start", func(img *ociImage) { img.config.Config.Cmd = []string{"--simulate"} }},
	{"wrong user", "start", func(img *ociImage) { img.config.Config.User = "65532" }},
	{"GPUs requested", "start", func(img *ociImage) { img.config.Config.Env = []string{"NVIDIA_VISIBLE_DEVICES=all"} }},
	{"no revision", "labels", func(img *ociImage) { img.config.Config.Labels["org.opencontainers.image.revision"] = "unknown" }},
	{"wrong license name", "labels", func(img *ociImage) { img.config.Config.Labels["org.opencontainers.image.licenses"] = "MIT" }},
	{"a shell", "programs", func(img *ociImage) { img.files["/busybox/sh"] = &imageFile{mode: 0o755} }},
	{"a link to a shell", "programs", func(img *ociImage) { img.files["/opt/bash"] = &imageFile{mode: fs.ModeSymlink | 0o777, link: "/opt/x"} }},
	{"additional program", "programs", func(img *ociImage) { img.files["/usr/sbin/ldconfig"] = &imageFile{mode: 0o755} }},
	{"program outside bin", "programs", func(img *ociImage) { img.files["/opt/tool"] = &imageFile{mode: 0o755, content: []byte("\x7fELF")} }},
	{"setuid", "permissions", func(img *ociImage) { img.files["/opt/x"] = &imageFile{mode: fs.ModeSetuid | 0o755} }},
	{"a capability of a file", "permissions", func(img *ociImage) {
		img.files["/opt/x"] = &imageFile{mode: 0o755, xattrs: map[string]string{"SCHILY.xattr.security.capability": "\x01"}}
	}},
	{"world-writable folder", "permissions", func(img *ociImage) { img.files["/opt"] = &imageFile{mode: fs.ModeDir | 0o777} }},
	{"wrong file owner", "permissions", func(img *ociImage) { img.files[programPath].uid = 1000 }},
	{"unsupported architecture", "architecture", func(img *ociImage) { img.config.Architecture = "s390x" }},
	{"wrong operating system", "architecture", func(img *ociImage) { img.config.OS = "windows" }},
	{"binary of a different architecture", "architecture", func(img *ociImage) {
		binary.LittleEndian.PutUint16(img.files[programPath].content[18:], uint16(elf.EM_RISCV)) // e_machine
	}},
	{"bound at start", "lazy binding", func(img *ociImage) { replaceDynTag(img, elf.DT_DEBUG, elf.DT_BIND_NOW) }},
	{"without cgo", "lazy binding", func(img *ociImage) { replace(img, "nvml", "mlvn") }},
	{"no C library", "libraries", func(img *ociImage) { remove(img, "libc.so.6") }},
	{"no dynamic linker", "libraries", func(img *ociImage) { remove(img, "ld-linux") }},
	{"wrong C library", "libraries", func(img *ociImage) {
		libc, libm := find(img, "libc.so.6"), find(img, "libm.so.6")
		img.files[libc] = img.files[libm]
	}},
	{"local paths", "build info", func(img *ociImage) { replace(img, "-trimpath=true", "-trimpath=fals") }},
	{"wrong program name", "build info", func(img *ociImage) { replace(img, "path\tgithub.com/podgauge", "path\tgithub.com/podgaugf") }},
	{"unlisted package", "packages", func(img *ociImage) { delete(img.files, "/var/lib/dpkg/status.d/libc6") }},
	{"package without a version", "packages", func(img *ociImage) { img.files["/var/lib/dpkg/status.d/libc6"].content = []byte("Package: libc6\n") }},
	{"no certificates", "packages", func(img *ociImage) { delete(img.files, "/etc/ssl/certs/ca-certificates.crt") }},
	{"no license", "license", func(img *ociImage) { delete(img.files, "/usr/share/doc/podgauge/LICENSE") }},
}

// replaceDynTag changes the tag of an entry of the binary's dynamic section.
func replaceDynTag(img *ociImage, from, to elf.DynTag) {
	bin, err := img.openELF(programPath)
	if err != nil {
		panic(err)
	}
	section := bin.Section(".dynamic")
	for entry := section.Offset; entry < section.Offset+section.Size; entry += 16 {
		tag := img.files[programPath].content[entry : entry+8]
		if elf.DynTag(binary.LittleEndian.Uint64(tag)) == from {
			binary.LittleEndian.PutUint64(tag, uint64(to))
			return
		}
	}
	panic(from.String() + " is not in the binary")
}

func replace(img *ociImage, old, replacement string) {
	if !bytes.Contains(img.files[programPath].content, []byte(old)) {
		panic(old + " is not in the binary")
	}
	img.files[programPath].content = bytes.ReplaceAll(img.files[programPath].content, []byte(old), []byte(replacement))
}

func find(img *ociImage, prefix string) string {
	for name, f := range img.files {
		if strings.HasPrefix(filepath.Base(name), prefix) && f.mode.IsRegular() {
			return name
		}
	}
	panic(prefix + " is not in the image")
}

func remove(img *ociImage, prefix string) { delete(img.files, find(img, prefix)) }

func TestChecks(t *testing.T) {
	for _, check := range imageChecks {
		found, err := check.run(goodImage(t))
		if err != nil || found == "" {
			t.Errorf("%s of a valid image: got %q, %v, want a description", check.name, found, err)
		}
	}
	tried := map[string]bool{}
	for _, c := range brokenImages {
		img := goodImage(t)
		c.corrupt(img)
		for _, check := range imageChecks {
			if check.name != c.check {
				continue
			}
			tried[check.name] = true
			if _, err := check.run(img); err == nil {
				t.Errorf("%s of an image with defect %q: got no error", check.name, c.defect)
			}
		}
	}
	for _, check := range imageChecks {
		if !tried[check.name] {
			t.Errorf("brokenImages lacks a defect for check %s", check.name)
		}
	}
}
