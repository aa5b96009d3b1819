package image

import (
	"io/fs"
	"testing"
)

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
