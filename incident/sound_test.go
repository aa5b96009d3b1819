package incident

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
)

// pages are those of a kind in a file, each with where it begins.
func pages(data []byte, kind uint16) (at []int) {
	size := os.Getpagesize()
	for start := 0; start+size <= len(data); start += size {
		if order.Uint16(data[start+8:]) == kind && order.Uint16(data[start+10:]) > 1 {
			at = append(at, start)
		}
	}
	return at
}

// read opens a file of these bytes.
func read(t *testing.T, data []byte) (contents, error) {
	t.Helper()
	s := &store{path: filepath.Join(t.TempDir(), "incidents.db"), log: New(Options{}).o.Log}
	if err := os.WriteFile(s.path, data, 0o600); err != nil {
		t.Fatal(err)
	}
	defer s.close()
	return s.load()
}

// What bbolt would follow in circles until the stack is full, which no process survives.
func TestPagesThatLeadInCircles(t *testing.T) {
	path, _ := filled(t)
	sound, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	branches := pages(sound, branchPage)
	if len(branches) == 0 {
		t.Fatal("there is no branch")
	}
	found := 0
	for _, at := range branches { // some are of before, and free now
		data := append([]byte(nil), sound...)
		order.PutUint16(data[at+10:], 1)             // of one key no other can be out of order
		copy(data[at+headerBytes+8:], data[at:at+8]) // and its child is itself
		if _, err := read(t, data); errors.Is(err, errBroken) {
			found++
		}
	}
	if found == 0 {
		t.Error("none is found")
	}
}

// A page that has lost its last record is sound, and is found out by the seal.
func TestALostRecordIsMissed(t *testing.T) {
	path, written := filled(t)
	sound, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	found := 0
	for _, at := range pages(sound, leafPage) {
		data := append([]byte(nil), sound...)
		order.PutUint16(data[at+10:], order.Uint16(data[at+10:])-1)
		c, err := read(t, data)
		if len(c.incidents) == len(written)-1 {
			found++
			if !errors.Is(err, errBroken) {
				t.Errorf("of %d incidents %d are read, and nobody is told: %v", len(written), len(c.incidents), err)
			}
		}
	}
	if found == 0 {
		t.Error("none was lost, so this has shown nothing")
	}
}

// What is whole of a broken store goes to the new one.
func TestABrokenStoreIsSalvaged(t *testing.T) {
	path, written := filled(t)
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	for _, at := range pages(data, leafPage) {
		turned := append([]byte(nil), data...)
		end := at + os.Getpagesize() - 1
		for turned[end] == 0 {
			end--
		}
		turned[end] ^= 1 // of the last record's text
		if c, err := read(t, turned); err == nil || len(c.incidents) == 0 {
			continue
		}
		if err := os.WriteFile(path, turned, 0o600); err != nil {
			t.Fatal(err)
		}
		play(t, Options{Path: path, MaxAge: 1 << 62}, func(t *testing.T, s *stage) {
			if got := s.incidents(); len(got) < len(written)-1 {
				t.Errorf("of %d incidents %d are salvaged", len(written), len(got))
			}
			if err := s.Sync(t.Context()); err != nil {
				t.Error(err)
			}
			if n := s.lines.count("is set aside"); n != 1 {
				t.Errorf("it is said %d times", n)
			}
			if got := contentsOf(t, copyOf(t, path)); len(got.incidents) < len(written)-1 || len(got.counts) < len(written)-1 {
				t.Errorf("the new store has %d incidents and %d counts", len(got.incidents), len(got.counts))
			}
		})
		if aside, err := os.ReadFile(aside(path)); err != nil || string(aside) != string(turned) {
			t.Errorf("what is set aside is not what there was: %v", err)
		}
		return
	}
	t.Error("nothing was broken, so this has shown nothing")
}
