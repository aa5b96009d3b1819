package incident

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"runtime/debug"
	"syscall"

	"go.etcd.io/bbolt"
)

// The store's buckets. Keys of incidents are their IDs, eight bytes, the greatest first.
var (
	incidentsBucket = []byte("incidents")
	countsBucket    = []byte("counts")
	sealBucket      = []byte("seal")
	sealKey         = []byte("seal")
)

// storeFormat is that of the store. One that is greater is a later version's.
const storeFormat = 1

var (
	errBroken = errors.New("it is broken")
	errLater  = errors.New("it is a later version's")
	crcTable  = crc32.MakeTable(crc32.Castagnoli)
)

// store is a file of bbolt's. Each record begins with a checksum over its key and itself,
// and a seal says how many there are and what their checksums come to, so that neither a
// wrong record nor a missing one passes for right. It belongs to one goroutine.
type store struct {
	path string
	log  *slog.Logger
	file *os.File
	db   *bbolt.DB // nil while it is not open
	hurt bool      // bbolt has panicked
}

// seal is over all records.
type seal struct {
	Format  int    `json:"format"`
	Records int    `json:"records"`
	Sum     uint32 `json:"sum"` // the checksums, each one a bit that is turned
}

// open returns what the store has. One that is broken is set aside.
func (s *store) open() (found contents, err error) {
	if found, err = s.load(); !errors.Is(err, errBroken) {
		return found, err
	}
	s.log.Error("the store of incidents is set aside, and a new one begun", "path", s.path, "aside", aside(s.path), "kept", len(found.incidents), "err", err)
	if err := os.Rename(s.path, aside(s.path)); err != nil {
		s.close()
		return contents{}, fmt.Errorf("set a broken store of incidents aside: %w", err)
	}
	s.close()
	salvaged := found
	if _, err = s.load(); err != nil {
		return contents{}, err
	}
	salvaged.salvaged = true
	return salvaged, nil
}

// aside is where a broken store is kept. There is one at most.
func aside(path string) string { return path + ".bad" }

// load opens the file and reads what it has. Where that is broken, what could be read
// comes with the error, and the file is still locked.
func (s *store) load() (found contents, err error) {
	defer s.recovered(&err, debug.SetPanicOnFault(true))
	defer func() {
		if err != nil && !errors.Is(err, errBroken) {
			s.close()
		}
	}()
	if err := os.MkdirAll(filepath.Dir(s.path), 0o700); err != nil {
		return contents{}, fmt.Errorf("open the store of incidents: %w", err)
	}
	db, err := bbolt.Open(s.path, 0o600, &bbolt.Options{OpenFile: s.openFile, FreelistType: bbolt.FreelistArrayType, NoStatistics: true})
	if err != nil {
		return contents{}, fmt.Errorf("open the store of incidents: %w", err)
	}
	s.db = db
	err = db.View(found.read)
	if err != nil {
		return found, fmt.Errorf("read the store of incidents: %w", err)
	}
	return found, nil
}

// openFile locks the file before bbolt does, which would wait, and looks whether bbolt can
// read it without harm.
func (s *store) openFile(path string, flag int, mode fs.FileMode) (*os.File, error) {
	for {
		f, err := os.OpenFile(path, flag|syscall.O_CLOEXEC, mode)
		if err != nil {
			return nil, err
		}
		s.file = f
		if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
			if errors.Is(err, syscall.EWOULDBLOCK) {
				return nil, errLocked
			}
			return nil, fmt.Errorf("lock %s: %w", path, err)
		}
		if !isStill(f, path) { // another process has just set it aside
			s.close()
			continue
		}
		return f, sound(f)
	}
}

// isStill tells whether a path leads to a file that is open.
func isStill(f *os.File, path string) bool {
	there, err := os.Stat(path)
	if err != nil {
		return false
	}
	is, err := f.Stat()
	return err == nil && os.SameFile(is, there)
}

// recovered turns into an error what bbolt and a disk that fails make of reading a map of
// the file. before is what the goroutine did with faults.
func (s *store) recovered(err *error, before bool) {
	debug.SetPanicOnFault(before)
	if what := recover(); what != nil {
		s.hurt = true
		*err = fmt.Errorf("%w: %v", errBroken, what)
	}
}

// close gives the file back, with its lock. Where bbolt has panicked it is not asked to,
// since it may hold a lock of its own for ever; then what it has mapped stays so.
func (s *store) close() {
	if s.db != nil && !s.hurt {
		if err := s.db.Close(); err != nil {
			s.log.Warn("close the store of incidents", "err", err)
		}
	} else if s.file != nil {
		syscall.Flock(int(s.file.Fd()), syscall.LOCK_UN) //nolint:errcheck // a map of the file keeps its lock
		s.file.Close()                                   //nolint:errcheck // it is given up
	}
	s.file, s.db, s.hurt = nil, nil, false
}

// read takes in all records, and says where one of them is not what was written.
func (c *contents) read(tx *bbolt.Tx) error {
	root, all := tx.Bucket(sealBucket), seal{}
	if root == nil { // nothing was written yet
		if first, _ := tx.Cursor().First(); first != nil {
			return fmt.Errorf("%w: it has no seal", errBroken)
		}
		return nil
	}
	sealed, wrong := seal{}, 0
	if err := unwrap(sealKey, root.Get(sealKey), &sealed); err != nil {
		wrong++
	} else if sealed.Format > storeFormat {
		return errLater
	}
	each := func(bucket []byte, take func(key, value []byte) error) {
		b := tx.Bucket(bucket)
		if b == nil {
			wrong++
			return
		}
		cursor := b.Cursor()
		for key, value := cursor.First(); key != nil; key, value = cursor.Next() {
			all.add(value, 1)
			if take(key, value) != nil {
				wrong++
			}
		}
	}
	each(incidentsBucket, c.readIncident)
	each(countsBucket, c.readCount)
	switch {
	case wrong > 0:
		return fmt.Errorf("%w: %d of its records are not what was written", errBroken, wrong)
	case all.Records != sealed.Records || all.Sum != sealed.Sum:
		return fmt.Errorf("%w: it has %d records in place of %d", errBroken, all.Records, sealed.Records)
	}
	return nil
}

func (c *contents) readIncident(key, value []byte) error {
	var i Incident
	if err := unwrap(key, value, &i); err != nil {
		return err
	}
	if len(key) != 8 || binary.BigEndian.Uint64(key) != i.ID {
		return errBroken
	}
	c.incidents = append(c.incidents, i)
	return nil
}

func (c *contents) readCount(key, value []byte) error {
	var r record
	if err := unwrap(key, value, &r); err != nil {
		return err
	}
	if string(r.what().key()) != string(key) {
		return errBroken
	}
	c.counts = append(c.counts, r)
	return nil
}

// write writes a batch in one transaction, which is on the disk when it returns.
func (s *store) write(w *batch) (err error) {
	defer s.recovered(&err, debug.SetPanicOnFault(true))
	return s.db.Update(func(tx *bbolt.Tx) error {
		t, err := edit(tx)
		if err != nil {
			return err
		}
		for i := range w.incidents {
			t.put(t.incidents, idKey(w.incidents[i].ID), &w.incidents[i])
		}
		for _, id := range w.dropped {
			t.remove(t.incidents, idKey(id))
		}
		for i := range w.counts {
			what := w.counts[i].what()
			t.put(t.counts, what.key(), &w.counts[i])
		}
		for _, what := range w.forgotten {
			t.remove(t.counts, what.key())
		}
		t.set(t.root, sealKey, t.wrap(sealKey, &t.all))
		return t.err
	})
}

func idKey(id uint64) []byte { return binary.BigEndian.AppendUint64(nil, id) }

// edition is a transaction that writes, and the seal as it comes to be by it.
type edition struct {
	incidents, counts, root *bbolt.Bucket
	all                     seal
	err                     error // the first one
}

func edit(tx *bbolt.Tx) (*edition, error) {
	t := &edition{all: seal{Format: storeFormat}}
	for _, b := range []struct {
		bucket **bbolt.Bucket
		name   []byte
	}{{&t.incidents, incidentsBucket}, {&t.counts, countsBucket}, {&t.root, sealBucket}} {
		var err error
		if *b.bucket, err = tx.CreateBucketIfNotExists(b.name); err != nil {
			return nil, err
		}
	}
	t.incidents.FillPercent = 0.9 // IDs rise, so nothing comes between
	if sealed := t.root.Get(sealKey); sealed != nil {
		return t, unwrap(sealKey, sealed, &t.all)
	}
	return t, nil
}

func (t *edition) put(b *bbolt.Bucket, key []byte, v any) {
	if old := b.Get(key); old != nil {
		t.all.add(old, -1)
	}
	value := t.wrap(key, v)
	t.all.add(value, 1)
	t.set(b, key, value)
}

func (t *edition) set(b *bbolt.Bucket, key, value []byte) {
	if err := b.Put(key, value); err != nil && t.err == nil {
		t.err = err
	}
}

func (t *edition) remove(b *bbolt.Bucket, key []byte) {
	if old := b.Get(key); old != nil {
		t.all.add(old, -1)
		if err := b.Delete(key); err != nil && t.err == nil {
			t.err = err
		}
	}
}

// add notes that a record has come, or, with -1, has gone.
func (s *seal) add(value []byte, n int) {
	s.Records += n
	if len(value) >= 4 {
		s.Sum ^= binary.BigEndian.Uint32(value)
	}
}

// wrap makes a record. One that cannot be made fails the transaction.
func (t *edition) wrap(key []byte, v any) []byte {
	value, err := wrap(key, v)
	if err != nil && t.err == nil {
		t.err = err
	}
	return value
}

// wrap makes a record: a checksum over the key and the JSON, and the JSON.
func wrap(key []byte, v any) ([]byte, error) {
	text, err := json.Marshal(v)
	if err != nil {
		return nil, fmt.Errorf("encode a record: %w", err)
	}
	return append(binary.BigEndian.AppendUint32(nil, checksum(key, text)), text...), nil
}

// unwrap reads a record, where it is what was written.
func unwrap(key, value []byte, into any) error {
	if len(value) < 4 || binary.BigEndian.Uint32(value) != checksum(key, value[4:]) {
		return errBroken
	}
	return json.Unmarshal(value[4:], into)
}

func checksum(key, text []byte) uint32 {
	return crc32.Update(crc32.Checksum(key, crcTable), crcTable, text)
}
