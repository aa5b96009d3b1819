package config

import (
	"strings"
	"testing"
)

func TestClaimPatterns(t *testing.T) {
	const namespace, name, driver = "monitoring", "dcgm-x7k2p-gpus-8h2lk", "gpu.nvidia.com"
	for _, c := range []struct {
		pattern string
		matches bool
	}{
		{"monitoring/*", true},
		{"monitoring/dcgm-*", true},
		{"*/dcgm-*-gpus-*/gpu.nvidia.com", true},
		{"*/*", true},
		{"*/*/*", true},
		{"*/*/gpu.nvidia.com", true},
		{"*/*/nic.example.com", false},
		{"monitoring/dcgm", false},
		{"monitor/*", false},
	} {
		p, err := ParseClaimPattern(c.pattern)
		if err != nil {
			t.Errorf("%s: %v", c.pattern, err)
		}
		claims := ClaimsConfig{Ignore: []ClaimPattern{mustParseClaim(t, "other/*"), p}}
		if claims.Ignores(namespace, name, driver) != c.matches {
			t.Errorf("%s: got %t, want %t", c.pattern, !c.matches, c.matches)
		}
	}
	if (ClaimsConfig{}).Ignores(namespace, name, driver) {
		t.Error("Ignores without a pattern: got true, want false")
	}
}

func mustParseClaim(t *testing.T, s string) ClaimPattern {
	t.Helper()
	p, err := ParseClaimPattern(s)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func TestInvalidClaimPatterns(t *testing.T) {
	for _, pattern := range []string{
		"", "*", "monitoring", "/", "a/", "/a", "a/b/", "a/b/c/d", "Monitoring/*", "a b/*",
		"a/b_c", "ä/*", "a/b\n",
	} {
		_, err := ParseClaimPattern(pattern)
		if err == nil || !strings.Contains(err.Error(), "expected NAMESPACE/NAME") {
			t.Errorf("%q: got %v, want an error with the expected form", pattern, err)
		}
	}
}
