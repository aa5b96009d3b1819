package image

import (
	"archive/tar"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os/exec"
	"path"
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
	img := &ociImage{name: imageName(manifest.Manifests[0].Annotations), config: *config, files: map[string]*imageFile{}}
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

// imageName returns the name under which containerd imports an image: containerd's annotation, or the OCI reference name.
func imageName(annotations map[string]string) string {
	if name := annotations["io.containerd.image.name"]; name != "" {
		return name
	}
	return annotations["org.opencontainers.image.ref.name"]
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
