package incident

import (
	"bufio"
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/podgauge/podgauge/internal/state/disk"
)

// writerDir is a variable with a directory. A process of this test's binary writes to folders there until it is killed.
const writerDir = "PODGAUGE_TEST_WRITER"

const writerFolders = 4

// writeUntilKilled writes to several folders concurrently, as fast as possible.
func writeUntilKilled(dir string) {
	var writers sync.WaitGroup
	for n := range writerFolders {
		writers.Go(func() { writeFolder(dir, n) })
	}
	writers.Wait()
}

// writeFolder records events of a device, and prints the scraped counts.
func writeFolder(dir string, n int) {
	k := newFakeAllocations()
	k.setOwner("a", owner("A"))
	l := newLog(Options{Folder: disk.OpenFolder(writerFolder(dir, n)), Sources: &fakeSources{allocations: k}, MaxIncidents: 16})
	go l.Run(context.Background())
	o := xidEvent(79, gpuDevice("a")) // written at once
	for {
		known, changed := l.Get()
		fmt.Println(n, exportedCount(known), len(known.Incidents))
		o.At = o.At.Add(2 * mergeWindow) // always another incident
		l.Record(o)
		<-changed
	}
}

// exportedCount returns the count that a scrape exports. Both counts rise by one with each event.
func exportedCount(k Snapshot) uint64 {
	if len(k.Devices) == 0 || len(k.Affected) == 0 {
		return 0
	}
	return min(k.Devices[0].Count, k.Affected[0].Count)
}

func writerFolder(dir string, n int) string { return filepath.Join(dir, fmt.Sprint("state-", n)) }

// TestKilled kills processes a thousand times, at any point. The next process has at least the counts of the last scrape, and no invalid data.
func TestKilled(t *testing.T) {
	kills := 1000 / writerFolders
	if testing.Short() {
		kills /= 10
	}
	const concurrent = 2
	var writers sync.WaitGroup
	for range concurrent {
		dir := t.TempDir()
		writers.Go(func() {
			var counts [writerFolders]uint64
			for range kills / concurrent {
				if counts = killOnce(t, dir, counts); t.Failed() {
					return
				}
			}
			t.Logf("counts: %v", counts)
			for n, count := range counts {
				if count == 0 {
					t.Errorf("folder %d: got no count, the test is inconclusive", n)
				}
			}
		})
	}
	writers.Wait()
}

// killOnce runs a process that writes to its folders, kills it, and returns the count of each folder.
func killOnce(t *testing.T, dir string, counts [writerFolders]uint64) [writerFolders]uint64 {
	writer := exec.Command(os.Args[0])
	writer.Env = append(os.Environ(), writerDir+"="+dir)
	writer.Stderr = os.Stderr
	out, err := writer.StdoutPipe()
	if err != nil {
		t.Error(err)
		return counts
	}
	if err := writer.Start(); err != nil {
		t.Error(err)
		return counts
	}
	scraped := counts
	lines := bufio.NewScanner(out)
	readLine := func() bool {
		n, count, incidents := 0, uint64(0), 0
		if !lines.Scan() {
			return false
		}
		if _, err := fmt.Sscan(lines.Text(), &n, &count, &incidents); err != nil {
			t.Error(err)
			return false
		}
		if count < scraped[n] {
			t.Errorf("scraped count: got %d after %d", count, scraped[n])
		}
		scraped[n] = count
		return true
	}
	if rand.IntN(8) > 0 { // otherwise the process is killed while it starts or reads its files
		for range 1 + rand.IntN(20) {
			readLine()
		}
	}
	time.Sleep(time.Duration(rand.IntN(2000)) * time.Microsecond)
	if err := writer.Process.Kill(); err != nil {
		t.Error(err)
	}
	for readLine() {
	}
	writer.Wait()
	if code := writer.ProcessState.ExitCode(); code != -1 {
		t.Errorf("exit status of the writer: got %d, want a kill", code)
	}
	for n := range counts {
		counts[n] = reread(t, writerFolder(dir, n), scraped[n])
	}
	return counts
}

// reread reads a folder and compares the counts with the scraped ones.
func reread(t *testing.T, dir string, scraped uint64) uint64 {
	var log logBuffer
	l := newLog(Options{Folder: disk.OpenFolder(dir), Log: slog.New(slog.NewTextHandler(&log, nil))})
	l.update(time.Now())
	known, _ := l.Get()
	count := exportedCount(known)
	if _, err := os.Stat(filepath.Join(dir, fileName)); os.IsNotExist(err) {
		return 0 // nothing was written yet, and counts start from 0
	}
	if count < scraped {
		t.Errorf("count of the next process: got %d, want at least %d", count, scraped)
	}
	if known.Err != nil || !known.Persisted || log.count("\n") > 0 {
		t.Errorf("file is not usable: %+v, %s", known.Err, log.text.String())
	}
	for n, i := range known.Incidents {
		if i.Device != "a" || i.Reason != "xid_79" || i.Count != 1 || affectedPods(i) == "" {
			t.Errorf("incident %d: got %+v", n, i)
		}
	}
	if count > 0 && len(known.Incidents) != int(min(count, 12)) { // the rest of the quota is for errors of software
		t.Errorf("%d events: got %d incidents", count, len(known.Incidents))
	}
	return count
}
