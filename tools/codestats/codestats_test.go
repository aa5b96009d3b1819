package main

import (
	"slices"
	"testing"
)

func TestWords(t *testing.T) {
	var w words
	w.count("The holder of docs/holders.md tells whose device it is, no more. See [Device].")
	if want := []string{"no more", "tells", "holder"}; !slices.Equal(w.banned, want) {
		t.Errorf("banned words %q, want %q", w.banned, want)
	}
	if w.pronouns != 2 || w.all != 12 {
		t.Errorf("%d pronouns of %d words, want 2 of 12", w.pronouns, w.all)
	}
}

// graph returns files in the order of names. Each edge is a pair of names: the first uses the second.
func graph(names string, edges ...string) []*file {
	byName := map[byte]*file{}
	var files []*file
	for i := range len(names) {
		f := &file{name: names[i : i+1], uses: map[*file]bool{}}
		byName[names[i]], files = f, append(files, f)
	}
	for _, e := range edges {
		byName[e[0]].uses[byName[e[1]]] = true
	}
	return files
}

func TestUpward(t *testing.T) {
	for _, c := range []struct {
		files   []*file
		up, all int
	}{
		{graph("ab"), 0, 0},
		{graph("cba", "ab", "bc", "ac"), 0, 3},        // a tree in the wrong order
		{graph("ab", "ab", "ba"), 1, 2},               // a circle of two
		{graph("abc", "ab", "bc", "ca"), 1, 3},        // a circle of three
		{graph("abcd", "ab", "ba", "cd", "dc"), 2, 4}, // two circles
	} {
		if up, all := upward(c.files); len(up) != c.up || all != c.all {
			t.Errorf("%q of %d references run upward, want %d of %d", up, all, c.up, c.all)
		}
	}
}

func TestDuplicates(t *testing.T) {
	files := []*file{
		{dir: "a", types: []string{"T", "U"}},
		{dir: "b", types: []string{"T"}},
		{dir: "b", types: []string{"T", "V"}},
		{dir: "c", types: []string{"V"}, kind: test},
	}
	got := duplicates(files)
	if len(got) != 1 || !slices.Equal(got["T"], []string{"a", "b"}) {
		t.Errorf("duplicates %v, want T in a and b", got)
	}
}

// TestBannedWords checks that comments of tests are checked, and strings of tests are not.
func TestBannedWords(t *testing.T) {
	l := limits{Production: 1, NonTest: 1}
	for _, c := range []struct {
		file file
		ok   bool
	}{
		{file{kind: test, strings: words{banned: []string{"anew"}}}, true},
		{file{kind: test, comments: words{banned: []string{"anew"}}}, false},
		{file{kind: helper, strings: words{banned: []string{"anew"}}}, false},
	} {
		if err := l.check([]*file{&c.file}); (err == nil) != c.ok {
			t.Errorf("%+v: error %v, want ok %t", c.file, err, c.ok)
		}
	}
}
