package image

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"encoding/json"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// layers returns two layers of a small image. The second removes and replaces files of the first.
func layers() []map[string]*imageFile {
	return []map[string]*imageFile{
		{
			"/etc":        {mode: fs.ModeDir | 0o755},
			"/etc/secret": {mode: 0o600, content: []byte("secret")},
			"/lib":        {mode: fs.ModeSymlink | 0o777, link: "usr/lib"},
			"/usr":        {mode: fs.ModeDir | 0o755},
			"/usr/lib":    {mode: fs.ModeDir | 0o755},
			"/usr/lib/a":  {mode: 0o644, content: []byte("old")},
			"/usr/lib/b":  {mode: fs.ModeSymlink | 0o777, link: "../../lib/a"},
			"/usr/lib/c":  {mode: fs.ModeSymlink | 0o777, link: "c"},
		},
		{
			"/etc/.wh.secret": {mode: 0o644},
			"/usr/lib/a":      {mode: 0o644, content: []byte("new")},
		},
	}
}

// archive returns an OCI archive of an image.
func archive(name string, c imageConfig, layers ...map[string]*imageFile) archiveBlobs {
	b := archiveBlobs{}
	put := func(mediaType string, content []byte) blobDescriptor {
		d := blobDescriptor{MediaType: mediaType, Digest: digest(content)}
		b["blobs/"+strings.Replace(d.Digest, ":", "/", 1)] = content
		return d
	}
	encode := func(v any) []byte {
		content, err := json.Marshal(v)
		if err != nil {
			panic(err)
		}
		return content
	}
	var manifest struct {
		Config blobDescriptor   `json:"config"`
		Layers []blobDescriptor `json:"layers"`
	}
	for _, layer := range layers {
		content := tarOf(layer)
		c.RootFS.DiffIDs = append(c.RootFS.DiffIDs, digest(content))
		manifest.Layers = append(manifest.Layers, put("application/vnd.oci.image.layer.v1.tar+gzip", gzipBytes(content)))
	}
	manifest.Config = put("application/vnd.oci.image.config.v1+json", encode(c))
	d := put("application/vnd.oci.image.manifest.v1+json", encode(manifest))
	d.Annotations = map[string]string{"org.opencontainers.image.ref.name": name}
	b["index.json"] = encode(map[string]any{"manifests": []blobDescriptor{d}})
	return b
}

func tarOf(files map[string]*imageFile) []byte {
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, name := range slices.Sorted(maps.Keys(files)) {
		f := files[name]
		h, err := tar.FileInfoHeader(fileInfo{f, name}, f.link)
		if err != nil {
			panic(err)
		}
		h.Name = "." + name
		if err := w.WriteHeader(h); err != nil {
			panic(err)
		}
		if _, err := w.Write(f.content); err != nil {
			panic(err)
		}
	}
	if err := w.Close(); err != nil {
		panic(err)
	}
	return b.Bytes()
}

func gzipBytes(content []byte) []byte {
	var b bytes.Buffer
	w := gzip.NewWriter(&b)
	if _, err := w.Write(content); err != nil {
		panic(err)
	}
	if err := w.Close(); err != nil {
		panic(err)
	}
	return b.Bytes()
}

func TestReadImageAppliesLayers(t *testing.T) {
	name := filepath.Join(t.TempDir(), "image.tar")
	stored := map[string]*imageFile{}
	for path, content := range archive("x/y:1", imageConfig{Architecture: "amd64"}, layers()...) {
		stored["/"+path] = &imageFile{mode: 0o644, content: content}
	}
	if err := os.WriteFile(name, tarOf(stored), 0o644); err != nil {
		t.Fatal(err)
	}
	img, err := readImage(name)
	if err != nil {
		t.Fatal(err)
	}
	if img.name != "x/y:1" || img.config.Architecture != "amd64" {
		t.Errorf("image %s for %s, want x/y:1 for amd64", img.name, img.config.Architecture)
	}
	if _, found := img.files["/etc/secret"]; found {
		t.Error("/etc/secret exists, but the second layer removes it")
	}
	for path, want := range map[string]string{"/usr/lib/a": "/usr/lib/a", "/lib/a": "/usr/lib/a", "/lib/b": "/usr/lib/a"} {
		f, at, found := img.followLinks(path)
		if !found || at != want || string(f.content) != "new" {
			t.Errorf("%s: resolves to %s, found: %t; want %s with the new content", path, at, found, want)
		}
	}
	for _, path := range []string{"/usr/lib/c", "/lib/d"} {
		if _, at, found := img.followLinks(path); found {
			t.Errorf("%s resolves to %s, want an error", path, at)
		}
	}
}

func TestReadImageRejectsInvalidArchives(t *testing.T) {
	for name, corrupt := range map[string]func(archiveBlobs){
		"no index":    func(b archiveBlobs) { delete(b, "index.json") },
		"two images":  func(b archiveBlobs) { b["index.json"] = []byte(`{"manifests":[{},{}]}`) },
		"no manifest": func(b archiveBlobs) { b["index.json"] = []byte(`{"manifests":[{"digest":"sha256:00"}]}`) },
		"changed content": func(b archiveBlobs) {
			for path := range b {
				if strings.HasPrefix(path, "blobs/") {
					b[path] = append(slices.Clone(b[path]), ' ')
				}
			}
		},
	} {
		b := archive("x/y:1", imageConfig{}, layers()...)
		corrupt(b)
		if _, err := b.image(); err == nil {
			t.Errorf("%s: got no error", name)
		}
	}
	b := archive("x/y:1", imageConfig{RootFS: struct {
		DiffIDs []string `json:"diff_ids"`
	}{[]string{"sha256:00"}}}, layers()[0])
	if _, err := b.image(); err == nil {
		t.Error("configuration with wrong layer digests: got no error")
	}
}
