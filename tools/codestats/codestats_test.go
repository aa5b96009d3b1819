package main

import (
	"testing"
)

// graph returns files in the order of names. Each edge is a pair of names: the
// first uses the second.
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

func TestCodeLines(t *testing.T) {
	src := "// Package a.\npackage a\n\n/* b\n*/\nvar c = `d\n\n` // e\n\nfunc f() {\n\t// g\n}\n"
	if got := codeLines([]byte(src)); got != 6 {
		t.Errorf("got %d lines of code, want 6", got)
	}
}

func TestLimits(t *testing.T) {
	l := limits{Daemon: 10, Simulator: 7, Generators: 3, Compat: 2, Kube: 5, Tests: 20, KubeTests: 30}
	for _, c := range []struct {
		name  string
		files []*file
		ok    bool
	}{
		{"at the limits", append(graph("ab", "ab"), &file{code: 10}, &file{kind: test, lines: 20}), true},
		{"daemon", []*file{{code: 6}, {code: 5}}, false},
		{"simulator", []*file{{code: 8, kind: simulator}}, false},
		{"generators", []*file{{code: 4, kind: generator}}, false},
		{"compatibility", []*file{{code: 3, kind: compat}}, false},
		{"kube", []*file{{code: 6, kind: kube}}, false},
		{"helpers", []*file{{code: 11, kind: helper}}, true},
		{"tests", []*file{{kind: test, lines: 21}}, false},
		{"tests of kube", []*file{{kind: kubeTest, lines: 31}}, false},
		{"upward", graph("ab", "ab", "ba"), false},
	} {
		if err := l.check(c.files); (err == nil) != c.ok {
			t.Errorf("%s: error %v, want ok %t", c.name, err, c.ok)
		}
	}
}

func TestKindOf(t *testing.T) {
	linked := programs{
		daemon:    {"internal/app": true, "cmd/podgauge": true},
		simulator: {"internal/app": true, "cmd/podgauge-sim": true},
	}
	for path, want := range map[string]kind{
		"internal/app/app.go":          daemon,
		"internal/app/app_test.go":     test,
		"cmd/podgauge-sim/main.go":     simulator,
		"dashboards/panel.go":          generator,
		"internal/dcgm/fields.go":      compat,
		"internal/sxid/log.go":         host,
		"kube/internal/migrate/x.go":   compat,
		"kube/cmd/podgauge-kube/x.go":  kube,
		"test/helpers/require/x.go":    helper,
		"kube/internal/node/x_test.go": kubeTest,
	} {
		if got := linked.kindOf(path); got != want {
			t.Errorf("%s: got %s, want %s", path, got, want)
		}
	}
}
