package app_test

import (
	"bytes"
	"encoding/json"
	"os"
	"reflect"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/podgauge/podgauge/internal/web/api"
	"github.com/podgauge/podgauge/test/helpers/require"
)

// TestAPIPage checks that docs/reference/api.md has the actual responses as examples, and each field in its tables.
func TestAPIPage(t *testing.T) {
	const file = "../../docs/reference/api.md"
	page, err := os.ReadFile(file)
	require.NoError(t, err)
	examples := regexp.MustCompile(`(?s)<!-- example (\S+) -->\n(.*?)<!-- /example -->`)
	var paths []string
	for _, example := range examples.FindAllSubmatch(page, -1) {
		paths = append(paths, string(example[1]))
	}
	if len(paths) != 3 {
		t.Fatalf("examples in %s: got %q", file, paths)
	}
	bodies := newScriptedNode().serve(t, paths...)
	want := examples.ReplaceAllFunc(page, func(example []byte) []byte {
		path := string(examples.FindSubmatch(example)[1])
		var body bytes.Buffer
		require.NoError(t, json.Indent(&body, []byte(bodies[path]), "", "  "))
		return []byte("<!-- example " + path + " -->\n```json\n" + body.String() + "```\n<!-- /example -->")
	})
	if *update {
		require.NoError(t, os.WriteFile(file, want, 0o644))
	} else if !bytes.Equal(page, want) {
		t.Errorf("the examples in docs/reference/api.md differ from the responses; run make golden")
	}
	tables := examples.ReplaceAllString(string(page), "")
	for _, response := range []any{api.NodeResponse{}, api.DevicesResponse{}, api.AllocationsResponse{}, api.IncidentsResponse{}} {
		for _, field := range jsonFields(reflect.TypeOf(response)) {
			if !strings.Contains(tables, "`"+field+"`") {
				t.Errorf("docs/reference/api.md lacks %s of %T", field, response)
			}
		}
	}
}

// jsonFields returns the JSON names of a struct's fields, including nested structs.
func jsonFields(typ reflect.Type) (names []string) {
	switch typ.Kind() {
	case reflect.Pointer, reflect.Slice:
		return jsonFields(typ.Elem())
	case reflect.Struct:
		if typ == reflect.TypeFor[time.Time]() {
			return nil
		}
		for f := range typ.Fields() {
			if name, _, _ := strings.Cut(f.Tag.Get("json"), ","); name != "" && name != "-" {
				names = append(names, name)
			}
			names = append(names, jsonFields(f.Type)...)
		}
	}
	return names
}

// TestIncidentFamilies checks the metrics of the scripted node.
func TestIncidentFamilies(t *testing.T) {
	text := newScriptedNode().serve(t, "/metrics")["/metrics"]
	lint(t, "incidents", text)
	checkGolden(t, "incidents.prom", text)
}
