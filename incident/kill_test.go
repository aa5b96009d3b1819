package incident

import (
	"bufio"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/podgauge/podgauge/device"
)

// writerDir names the variable that makes a process of this test's binary one that writes
// to stores there until it is killed.
const writerDir = "PODGAUGE_TEST_WRITER"

const (
	storesOfWriter = 4
	keptByWriter   = 12 // incidents, in each of them
)

// made is the incident of an id: one can be told from another, and from half of one.
func made(id uint64) Incident {
	i := Incident{ID: id, Count: id * id, Device: device.ID(fmt.Sprint("GPU-", id)), Reason: "xid_31", First: time.Unix(int64(id), 0)}
	holders := uint64(1)
	if id%7 == 0 {
		holders = 60 // so that some records are longer than a page
	}
	for n := range holders {
		i.Holders = append(i.Holders, Holder{Namespace: "team", Pod: fmt.Sprintf("pod-%d-%d", id, n), Container: "main"})
	}
	return i
}

// writeUntilKilled writes to some stores at a time, each as fast as it can.
func writeUntilKilled(dir string) {
	var writers sync.WaitGroup
	for n := range storesOfWriter {
		writers.Go(func() { writeOne(dir, n) })
	}
	writers.Wait()
}

// writeOne writes incidents, drops the oldest, and says after each transaction which is the
// newest.
func writeOne(dir string, n int) {
	s := &store{path: storeOf(dir, n), log: New(Options{}).o.Log}
	found, err := s.open()
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	s.db.NoSync = n%2 > 0 // what the kernel has, no signal takes away; so there are more points to be killed at
	next := uint64(1)
	if n := len(found.incidents); n > 0 {
		next = found.incidents[n-1].ID + 1
	}
	fmt.Println(n, next-1)
	for {
		w := &batch{}
		for range 1 + rand.IntN(5) {
			w.incidents = append(w.incidents, made(next))
			if next > keptByWriter {
				w.dropped = append(w.dropped, next-keptByWriter)
			}
			next++
		}
		w.counts = []record{{Device: "GPU-0", Reason: "xid_31", Count: next - 1}}
		if err := s.write(w); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		fmt.Println(n, next-1)
	}
}

func storeOf(dir string, n int) string { return filepath.Join(dir, fmt.Sprintf("incidents-%d.db", n)) }

// A store whose process is killed at any point has lost nothing that was confirmed, and has
// nothing that is wrong: a thousand times, each store at a point of its own.
func TestKilled(t *testing.T) {
	kills := 1000 / storesOfWriter
	if testing.Short() {
		kills /= 10
	}
	const abreast = 2
	var writers sync.WaitGroup
	for range abreast {
		dir := t.TempDir()
		writers.Go(func() {
			var newest [storesOfWriter]uint64
			for range kills / abreast {
				if newest = killOnce(t, dir, newest); t.Failed() {
					return
				}
			}
			t.Logf("%v incidents were confirmed", newest)
			for n, newest := range newest {
				if newest == 0 {
					t.Errorf("store %d has nothing, so this has shown nothing", n)
				}
			}
		})
	}
	writers.Wait()
}

// killOnce has a process write to its stores and kills it, and returns the newest incident
// that each of them has then.
func killOnce(t *testing.T, dir string, newest [storesOfWriter]uint64) [storesOfWriter]uint64 {
	writer := exec.Command(os.Args[0])
	writer.Env = append(os.Environ(), writerDir+"="+dir)
	writer.Stderr = os.Stderr
	out, err := writer.StdoutPipe()
	if err != nil {
		t.Error(err)
		return newest
	}
	if err := writer.Start(); err != nil {
		t.Error(err)
		return newest
	}
	confirmed := newest
	lines := bufio.NewScanner(out)
	take := func() bool {
		n, id := 0, uint64(0)
		if !lines.Scan() {
			return false
		}
		if _, err := fmt.Sscan(lines.Text(), &n, &id); err != nil {
			t.Error(err)
			return false
		}
		confirmed[n] = id
		return true
	}
	if rand.IntN(8) > 0 { // else it is killed while it starts, or opens its stores
		for range 1 + rand.IntN(40) {
			take()
		}
	}
	time.Sleep(time.Duration(rand.IntN(2000)) * time.Microsecond)
	if err := writer.Process.Kill(); err != nil {
		t.Error(err)
	}
	for take() {
	}
	writer.Wait()
	if code := writer.ProcessState.ExitCode(); code != -1 {
		t.Errorf("the writer ended by itself, with status %d", code)
	}
	for n := range newest {
		newest[n] = reread(t, storeOf(dir, n), confirmed[n])
	}
	return newest
}

// reread reads a store and holds it against what was confirmed.
func reread(t *testing.T, path string, confirmed uint64) (newest uint64) {
	s := &store{path: path, log: New(Options{}).o.Log}
	defer s.close()
	found, err := s.load()
	if err != nil && confirmed > 0 {
		t.Errorf("after %d was confirmed: %v", confirmed, err)
		return confirmed
	}
	if err != nil { // it was killed while the file was made
		os.Remove(path)
		return 0
	}
	for _, i := range found.incidents {
		if fmt.Sprint(i) != fmt.Sprint(made(i.ID)) {
			t.Errorf("an incident is read that was not written: %+v", i)
		}
		if newest > 0 && i.ID != newest+1 {
			t.Errorf("%d follows %d", i.ID, newest)
		}
		newest = i.ID
	}
	if newest < confirmed {
		t.Errorf("%d was confirmed, and %d is the newest", confirmed, newest)
	}
	if newest > 0 && (len(found.incidents) != int(min(newest, keptByWriter)) || found.counts[0].Count != newest) {
		t.Errorf("of %d there are %d incidents and a count of %d", newest, len(found.incidents), found.counts[0].Count)
	}
	return newest
}
