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

func TestRunCommand(t *testing.T) {
	t.Setenv("A_FIRST", "1")
	for _, tc := range []struct {
		args      []string
		terminate bool
		status    int
		stdout    string
		wantErr   bool
	}{
		{args: []string{"pause"}, terminate: true},
		{args: []string{"sleep", "2s"}},
		{args: []string{"sleep", "1h"}, terminate: true, status: 143},
		{args: []string{"exit", "3"}, status: 3},
		{args: []string{"family", "0"}, terminate: true},
		{args: []string{"family", "few"}, wantErr: true},
		{args: []string{"env"}, stdout: "A_FIRST=1\n"},
		{args: nil, wantErr: true},
		{args: []string{"sleep", "long"}, wantErr: true},
		{args: []string{"pause", "now"}, wantErr: true},
	} {
		t.Run(strings.Join(tc.args, " "), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				terminated := make(chan os.Signal, 1)
				if tc.terminate {
					time.AfterFunc(time.Second, func() { terminated <- syscall.SIGTERM })
				}
				var stdout bytes.Buffer
				status, err := runCommand(tc.args, terminated, &stdout)
				if (err != nil) != tc.wantErr {
					t.Fatalf("got error %v, want an error: %t", err, tc.wantErr)
				}
				if status != tc.status || !strings.Contains(stdout.String(), tc.stdout) {
					t.Errorf("got status %d and stdout %q, want %d and %q", status, &stdout, tc.status, tc.stdout)
				}
			})
		})
	}
}
