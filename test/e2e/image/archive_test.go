package image

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"strings"
)

// ociImage is the image in an OCI archive.
type ociImage struct {
	name   string
	config imageConfig
	// files is the file system by absolute path, with unresolved links.
	files map[string]*imageFile
	// compressed and uncompressed are the sizes of all layers in bytes.
	compressed, uncompressed int64
}

// imageConfig is the part of an image's configuration that the checks read.
// https://github.com/opencontainers/image-spec/blob/main/config.md
type imageConfig struct {
	Architecture string `json:"architecture"`
	OS           string `json:"os"`
	Config       struct {
		User       string
		Entrypoint []string
		Cmd        []string
		Env        []string
		Labels     map[string]string
	} `json:"config"`
	RootFS struct {
		DiffIDs []string `json:"diff_ids"`
	} `json:"rootfs"`
}

// imageFile is an entry of a layer. The mode includes the file type.
type imageFile struct {
	mode     fs.FileMode
	uid, gid int
	link     string // target of a symbolic link
	xattrs   map[string]string
	content  []byte
}

// programName returns the name of the image's command.
func (img *ociImage) programName() string {
	if strings.HasPrefix(img.name, registry+simulatorName+":") {
		return simulatorName
	}
	return "podgauge"
}

func (f *imageFile) executable() bool { return f.mode.IsRegular() && f.mode&0o111 != 0 }

type blobDescriptor struct {
	MediaType   string            `json:"mediaType"`
	Digest      string            `json:"digest"`
	Annotations map[string]string `json:"annotations"`
}

// archiveBlobs are the files of an archive by path.
type archiveBlobs map[string][]byte

// readImage reads an archive with one image.
// https://github.com/opencontainers/image-spec/blob/main/image-layout.md
func readImage(archive string) (*ociImage, error) {
	f, err := os.Open(archive)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	stored := archiveBlobs{}
	for entry, err := range layerEntries(f) {
		if err != nil {
			return nil, fmt.Errorf("read %s: %w", archive, err)
		}
		stored[path.Clean(entry.header.Name)] = entry.content
	}
	img, err := stored.image()
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", archive, err)
	}
	return img, nil
}

func (b archiveBlobs) image() (*ociImage, error) {
	var index struct{ Manifests []blobDescriptor }
	if err := json.Unmarshal(b["index.json"], &index); err != nil {
		return nil, fmt.Errorf("index.json: %w", err)
	}
	if len(index.Manifests) != 1 {
		return nil, fmt.Errorf("index.json has %d images, want 1", len(index.Manifests))
	}
	var manifest struct {
		Config blobDescriptor
		Layers []blobDescriptor
	}
	if err := b.decode(index.Manifests[0], &manifest); err != nil {
		return nil, fmt.Errorf("manifest: %w", err)
	}
	img := &ociImage{name: imageName(index.Manifests[0].Annotations), files: map[string]*imageFile{}}
	if err := b.decode(manifest.Config, &img.config); err != nil {
		return nil, fmt.Errorf("configuration: %w", err)
	}
	if got, want := len(manifest.Layers), len(img.config.RootFS.DiffIDs); got != want {
		return nil, fmt.Errorf("manifest has %d layers, configuration has %d", got, want)
	}
	for i, layer := range manifest.Layers {
		if err := img.applyLayer(b, layer, img.config.RootFS.DiffIDs[i]); err != nil {
			return nil, fmt.Errorf("layer %d: %w", i, err)
		}
	}
	return img, nil
}

// imageName returns the name under which containerd imports an image: containerd's annotation, or the OCI reference name.
func imageName(annotations map[string]string) string {
	if name := annotations["io.containerd.image.name"]; name != "" {
		return name
	}
	return annotations["org.opencontainers.image.ref.name"]
}

// get returns a blob and checks its digest.
func (b archiveBlobs) get(d blobDescriptor) ([]byte, error) {
	content, found := b["blobs/"+strings.Replace(d.Digest, ":", "/", 1)]
	if !found {
		return nil, fmt.Errorf("%s is missing", d.Digest)
	}
	if got := digest(content); got != d.Digest {
		return nil, fmt.Errorf("%s has digest %s", d.Digest, got)
	}
	return content, nil
}

func (b archiveBlobs) decode(d blobDescriptor, into any) error {
	content, err := b.get(d)
	if err != nil {
		return err
	}
	return json.Unmarshal(content, into)
}

// applyLayer applies a layer to the file system of the lower layers.
func (i *ociImage) applyLayer(b archiveBlobs, d blobDescriptor, diffID string) error {
	content, err := b.get(d)
	if err != nil {
		return err
	}
	i.compressed += int64(len(content))
	if strings.HasSuffix(d.MediaType, "gzip") {
		if content, err = gunzip(content); err != nil {
			return err
		}
	}
	if got := digest(content); got != diffID {
		return fmt.Errorf("layer has digest %s, configuration has %s", got, diffID)
	}
	i.uncompressed += int64(len(content))
	for entry, err := range layerEntries(bytes.NewReader(content)) {
		if err != nil {
			return err
		}
		if err := i.applyEntry(entry); err != nil {
			return err
		}
	}
	return nil
}

// whiteout is the prefix of files that a layer removes.
// https://github.com/opencontainers/image-spec/blob/main/layer.md#whiteouts
const whiteout = ".wh."

func (i *ociImage) applyEntry(e layerEntry) error {
	name := path.Join("/", e.header.Name)
	if hidden, found := strings.CutPrefix(path.Base(name), whiteout); found {
		if hidden == whiteout+".opq" {
			return fmt.Errorf("%s: opaque folders are not supported", name)
		}
		i.remove(path.Join(path.Dir(name), hidden))
		return nil
	}
	f := &imageFile{
		mode: e.header.FileInfo().Mode(), uid: e.header.Uid, gid: e.header.Gid, link: e.header.Linkname,
		xattrs: e.header.PAXRecords, content: e.content,
	}
	if e.header.Typeflag == tar.TypeLink {
		target, found := i.files[path.Join("/", e.header.Linkname)]
		if !found {
			return fmt.Errorf("%s is a link to a missing file, %s", name, e.header.Linkname)
		}
		f = target
	}
	i.files[name] = f
	return nil
}

func (i *ociImage) remove(name string) {
	for other := range i.files {
		if other == name || strings.HasPrefix(other, name+"/") {
			delete(i.files, other)
		}
	}
}

// followLinks resolves symbolic links as the kernel does with the image as root, and returns the file and its path.
func (i *ociImage) followLinks(name string) (*imageFile, string, bool) {
	at := "/"
	rest := strings.Split(strings.Trim(name, "/"), "/")
	for links := 0; len(rest) > 0; {
		next := path.Join(at, rest[0])
		f, found := i.files[next]
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
	return i.files[at], at, true
}

type layerEntry struct {
	header  *tar.Header
	content []byte
}

// layerEntries iterates over the entries of a tar until the first error.
func layerEntries(r io.Reader) func(yield func(layerEntry, error) bool) {
	return func(yield func(layerEntry, error) bool) {
		for t := tar.NewReader(r); ; {
			header, err := t.Next()
			if errors.Is(err, io.EOF) {
				return
			}
			var content []byte
			if err == nil {
				content, err = io.ReadAll(t)
			}
			if !yield(layerEntry{header, content}, err) || err != nil {
				return
			}
		}
	}
}

func gunzip(content []byte) ([]byte, error) {
	r, err := gzip.NewReader(bytes.NewReader(content))
	if err != nil {
		return nil, err
	}
	return io.ReadAll(r)
}

func digest(content []byte) string { return fmt.Sprintf("sha256:%x", sha256.Sum256(content)) }
