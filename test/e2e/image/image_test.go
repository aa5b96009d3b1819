package image

import (
	"archive/tar"
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"
)

var testImage = Image{Name: "local.test/box:1", Program: []byte("#!"), Path: "/box", Args: []string{"pause"}}

// TestEveryBlobIsReachable walks the layout the way an importer does: index, manifest, config and layer, each under its digest.
func TestEveryBlobIsReachable(t *testing.T) {
	var b bytes.Buffer
	if err := testImage.Write(&b); err != nil {
		t.Fatal(err)
	}
	files := untar(t, b.Bytes())
	var index struct{ Manifests []ociDescriptor }
	decode(t, files["index.json"], &index)
	if got := index.Manifests[0].Annotations["io.containerd.image.name"]; got != testImage.Name {
		t.Errorf("the image is named %q", got)
	}
	var manifest struct {
		Config ociDescriptor
		Layers []ociDescriptor
	}
	decode(t, blob(t, files, index.Manifests[0]), &manifest)
	var config struct {
		Config struct{ Entrypoint, Cmd []string }
		RootFS struct {
			DiffIDs []string `json:"diff_ids"`
		}
	}
	decode(t, blob(t, files, manifest.Config), &config)
	if got := fmt.Sprint(config.Config.Entrypoint, config.Config.Cmd); got != "[/box] [pause]" {
		t.Errorf("it starts %s", got)
	}
	if config.RootFS.DiffIDs[0] != manifest.Layers[0].Digest {
		t.Errorf("the config names layer %s, the manifest %s", config.RootFS.DiffIDs[0], manifest.Layers[0].Digest)
	}
	if got := untar(t, blob(t, files, manifest.Layers[0]))["box"]; !bytes.Equal(got, testImage.Program) {
		t.Errorf("the layer holds %q as the program", got)
	}
}

func TestSameImageSameBytes(t *testing.T) {
	var first, second bytes.Buffer
	if err := errors.Join(testImage.Write(&first), testImage.Write(&second)); err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(first.Bytes(), second.Bytes()) {
		t.Error("two writes of one image differ")
	}
}

func TestWriteSaysWhatFailed(t *testing.T) {
	err := testImage.Write(brokenWriter{})
	if !errors.Is(err, io.ErrClosedPipe) || !strings.Contains(err.Error(), testImage.Name) {
		t.Errorf("err = %v", err)
	}
}

type brokenWriter struct{}

func (brokenWriter) Write([]byte) (int, error) { return 0, io.ErrClosedPipe }

func untar(t *testing.T, b []byte) map[string][]byte {
	t.Helper()
	files := map[string][]byte{}
	for r := tar.NewReader(bytes.NewReader(b)); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			return files
		}
		if err != nil {
			t.Fatal(err)
		}
		if files[h.Name], err = io.ReadAll(r); err != nil {
			t.Fatal(err)
		}
	}
}

func blob(t *testing.T, files map[string][]byte, d ociDescriptor) []byte {
	t.Helper()
	b, found := files["blobs/sha256/"+strings.TrimPrefix(d.Digest, "sha256:")]
	if !found || len(b) != d.Size || d.Digest != fmt.Sprintf("sha256:%x", sha256.Sum256(b)) {
		t.Fatalf("no blob fits %+v", d)
	}
	return b
}

func decode(t *testing.T, b []byte, into any) {
	t.Helper()
	if err := json.Unmarshal(b, into); err != nil {
		t.Fatal(err)
	}
}
