package terms

import (
	"strings"
	"testing"
)

func TestFind(t *testing.T) {
	for text, want := range map[string]string{
		"The device is given anew.":                           "anew",
		"Nobody's processes":                                  "Nobody",
		"It is no more.":                                      "no more",
		"at most, and no more than 5":                         "",
		"Kubernetes says so.":                                 "says",
		"the holder of the GPU":                               "holder",
		"The household grows.":                                "",
		"two cards\nand a card-reader":                        "cards",
		"The request is refused.":                             "refused",
		"curl: connection refused":                            "",
		"MIG slices and EndpointSlices":                       "slices",
		"Go slices of a time slice":                           "",
		"a container with two shares of a GPU":                "two shares",
		"Containers share a GPU. The share of errors.":        "",
		"devices that are offered":                            "offered",
		"free GPUs":                                           "free GPUs",
		"free memory":                                         "",
		"Each stay of a pod":                                  "Each stay",
		"The device stays unhealthy.":                         "",
		"a flight of 3 s":                                     "flight",
		"requests in flight":                                  "",
		"looked at":                                           "looked",
		"Look up the pod, look for errors that look like it.": "",
		"until the GPU is well":                               "is well",
		"no\nmore of it":                                      "no",
		"is well below":                                       "",
		"Ask the owner of the pod.":                           "",
		"podgauge asks NVML":                                  "asks",
		"pods who fail":                                       "pods who",
		"users who read, people, who write":                   "",
		"the pod for whom":                                    "whom",
		"podgauge has not this metric":                        "has not this",
		"Restart the job if the operator has not reset it.":   "",
		"or else":                      "else",
		"nothing else, somewhere else": "",
		"held by a container":          "held",
		"a witness, a victim, the ledger, a mended GPU": "mended victim witness ledger",
	} {
		var got []string
		for _, f := range Docs.Find(text) {
			if text[f.Pos:f.Pos+len(f.Phrase)] != f.Phrase || f.Instead == "" {
				t.Errorf("%q: %+v", text, f)
			}
			got = append(got, f.Phrase)
		}
		for w := range strings.FieldsSeq(want) {
			if !strings.Contains(strings.Join(got, " "), w) {
				t.Errorf("%q: got %q, want %q", text, got, want)
			}
		}
		if want == "" && got != nil {
			t.Errorf("%q: got %q, want none", text, got)
		}
	}
}

// TestCode checks that words with a meaning in Go are legitimate in code.
func TestCode(t *testing.T) {
	if found := Code.Find("held, offered or a slice"); found != nil {
		t.Errorf("got %v", found)
	}
	if found := Code.Find("nobody"); len(found) != 1 {
		t.Errorf("got %v", found)
	}
}
