// Package image writes container images of one static program, so that the tests need no registry and no image builder.
package image

import (
	"archive/tar"
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"io"
	"runtime"
)

// Image is a program with default arguments.
type Image struct {
	// Name and tag, as in a pod: local.test/box:1.
	Name string
	// Program is the content of a statically linked binary. Path is its place in the image.
	Program []byte
	// Path is absolute.
	Path string
	// Args are the default arguments.
	Args []string
}

// Media types of the OCI image specification.
const (
	typeLayer    = "application/vnd.oci.image.layer.v1.tar"
	typeConfig   = "application/vnd.oci.image.config.v1+json"
	typeManifest = "application/vnd.oci.image.manifest.v1+json"
	typeIndex    = "application/vnd.oci.image.index.v1+json"
)

// ociDescriptor identifies a blob by its digest.
// https://github.com/opencontainers/image-spec/blob/main/descriptor.md
type ociDescriptor struct {
	MediaType   string            `json:"mediaType"`
	Digest      string            `json:"digest"`
	Size        int               `json:"size"`
	Annotations map[string]string `json:"annotations,omitempty"`
}

type jsonObject = map[string]any

// Write writes the image as the tar of an OCI image layout, for `ctr images import`. The bytes are reproducible.
func (i Image) Write(w io.Writer) error {
	out := layoutWriter{tar: tar.NewWriter(w)}
	layer := out.blob(typeLayer, i.layer())
	config := out.json(typeConfig, jsonObject{
		"architecture": runtime.GOARCH,
		"os":           "linux",
		"config":       jsonObject{"Entrypoint": []string{i.Path}, "Cmd": i.Args, "Env": []string{"PATH=/"}},
		"rootfs":       jsonObject{"type": "layers", "diff_ids": []string{layer.Digest}},
	})
	manifest := out.json(typeManifest, jsonObject{
		"schemaVersion": 2, "mediaType": typeManifest, "config": config, "layers": []ociDescriptor{layer},
	})
	// containerd takes the image's name from this annotation; the specification's own holds a tag only.
	manifest.Annotations = map[string]string{"io.containerd.image.name": i.Name}
	out.file("index.json", encode(jsonObject{"schemaVersion": 2, "mediaType": typeIndex, "manifests": []ociDescriptor{manifest}}))
	out.file("oci-layout", encode(jsonObject{"imageLayoutVersion": "1.0.0"}))
	if err := out.tar.Close(); err != nil {
		return fmt.Errorf("write image %s: %w", i.Name, err)
	}
	return nil
}

// layer returns the file system of the image: the program and the mount points of a runtime.
func (i Image) layer() []byte {
	var b bytes.Buffer
	out := layoutWriter{tar: tar.NewWriter(&b)}
	for _, folder := range []string{"bin/", "dev/", "etc/", "proc/", "sys/", "tmp/"} {
		out.header(&tar.Header{Name: folder, Typeflag: tar.TypeDir, Mode: 0o755})
	}
	out.file(i.Path[1:], i.Program)
	out.tar.Close() // a bytes.Buffer returns no error
	return b.Bytes()
}

// layoutWriter writes a tar. A tar.Writer returns its first error on Close, so other calls are not checked.
type layoutWriter struct{ tar *tar.Writer }

func (l layoutWriter) header(h *tar.Header) { _ = l.tar.WriteHeader(h) }

func (l layoutWriter) file(name string, content []byte) {
	l.header(&tar.Header{Name: name, Mode: 0o755, Size: int64(len(content))})
	_, _ = l.tar.Write(content)
}

func (l layoutWriter) blob(mediaType string, content []byte) ociDescriptor {
	digest := fmt.Sprintf("%x", sha256.Sum256(content))
	l.file("blobs/sha256/"+digest, content)
	return ociDescriptor{MediaType: mediaType, Digest: "sha256:" + digest, Size: len(content)}
}

func (l layoutWriter) json(mediaType string, content jsonObject) ociDescriptor {
	return l.blob(mediaType, encode(content))
}

// encode returns the JSON of a literal of this file, and panics on errors.
func encode(content jsonObject) []byte {
	b, err := json.Marshal(content)
	if err != nil {
		panic(err)
	}
	return b
}
