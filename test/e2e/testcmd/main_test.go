package main

import (
	"bytes"
	"os"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"
)

func TestWhatABoxDoes(t *testing.T) {
	t.Setenv("A_FIRST", "1")
	for _, tc := range []struct {
		args       []string
		terminate  bool
		status     int
		stdout     string
		wantsUsage bool
	}{
		{args: []string{"pause"}, terminate: true},
		{args: []string{"sleep", "2s"}},
		{args: []string{"sleep", "1h"}, terminate: true, status: 143},
		{args: []string{"exit", "3"}, status: 3},
		{args: []string{"family", "0"}, terminate: true},
		{args: []string{"family", "few"}, wantsUsage: true},
		{args: []string{"env"}, stdout: "A_FIRST=1\n"},
		{args: nil, wantsUsage: true},
		{args: []string{"sleep", "long"}, wantsUsage: true},
		{args: []string{"pause", "now"}, wantsUsage: true},
	} {
		t.Run(strings.Join(tc.args, " "), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				terminated := make(chan os.Signal, 1)
				if tc.terminate {
					time.AfterFunc(time.Second, func() { terminated <- syscall.SIGTERM })
				}
				var stdout bytes.Buffer
				status, err := runCommand(tc.args, terminated, &stdout)
				if (err != nil) != tc.wantsUsage {
					t.Fatalf("err = %v", err)
				}
				if status != tc.status || !strings.Contains(stdout.String(), tc.stdout) {
					t.Errorf("status %d and stdout %q, want %d and %q", status, &stdout, tc.status, tc.stdout)
				}
			})
		})
	}
}
