package incident

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"hash/fnv"
	"io"
	"os"
	"slices"
)

// bbolt believes what its file says: it follows a number to where no page is, or in circles
// until the stack is full, and neither can be recovered from. So a file is looked through
// before bbolt is given it: the pages that the newest valid meta page leads to, each once,
// and what each says of its elements. It is of a fixed format (version 2, since 2014; page.go,
// meta.go and bucket.go in go.etcd.io/bbolt/internal/common), in the byte order of the machine.

// What the format has.
const (
	boltMagic, boltVersion = 0xED0CDAED, 2

	headerBytes  = 16 // id, flags, count and overflow of a page
	elementBytes = 16
	metaBytes    = 64
	bucketBytes  = 16 // root and sequence
	idBytes      = 8

	leastPageBytes = 1 << 10

	branchPage, leafPage, freelistPage = 0x01, 0x02, 0x10

	isBucket = 0x01 // of a leaf's element
)

// mostFileBytes is beyond what a store comes to.
const mostFileBytes = 1 << 30

var order = binary.NativeEndian

// sound says where a file is not what bbolt can read. One that is empty is.
func sound(f *os.File) error {
	info, err := f.Stat()
	if err != nil {
		return err
	}
	switch size := info.Size(); {
	case size == 0:
		return nil
	case size > mostFileBytes:
		return fmt.Errorf("%w: it has %d bytes", errBroken, size)
	}
	w, root, err := newWalk(f, info.Size())
	if err != nil {
		return err
	}
	return w.tree(root, nil, nil, true)
}

// walk goes through a file's pages.
type walk struct {
	file     io.ReaderAt
	pageSize uint64
	pages    uint64 // that are in use, or were
	seen     []bool // of each: it is in a tree, or free
}

func brokenPage(id uint64, what string) error {
	return fmt.Errorf("%w: page %d %s", errBroken, id, what)
}

// newWalk reads the meta page that bbolt will, and the list of free pages.
func newWalk(f io.ReaderAt, size int64) (w *walk, root uint64, err error) {
	var newest []byte
	pageSize := uint64(0)
	for id := range uint64(2) {
		at := int64(id * pageSize)
		if id == 1 && pageSize == 0 {
			at = int64(os.Getpagesize()) // the first is not valid, and this is what it would say
		}
		page := make([]byte, headerBytes+metaBytes)
		if _, err := f.ReadAt(page, at); err != nil {
			break
		}
		meta := page[headerBytes:]
		if !validMeta(meta) {
			continue
		}
		pageSize = uint64(order.Uint32(meta[8:]))
		if newest == nil || order.Uint64(meta[48:]) > order.Uint64(newest[48:]) {
			newest = meta
		}
	}
	if newest == nil {
		return nil, 0, fmt.Errorf("%w: no meta page is valid", errBroken)
	}
	w = &walk{file: f, pageSize: pageSize, pages: order.Uint64(newest[40:])}
	if pageSize < leastPageBytes || pageSize&(pageSize-1) != 0 || w.pages < 4 || w.pages > uint64(size)/pageSize {
		return nil, 0, fmt.Errorf("%w: it should have %d pages of %d bytes, and has %d bytes", errBroken, w.pages, pageSize, size)
	}
	w.seen = make([]bool, w.pages)
	return w, order.Uint64(newest[16:]), w.freelist(order.Uint64(newest[32:]))
}

// validMeta tells whether a meta page is what was written.
func validMeta(meta []byte) bool {
	sum := fnv.New64a()
	sum.Write(meta[:56]) //nolint:errcheck // it never fails
	return order.Uint32(meta) == boltMagic && order.Uint32(meta[4:]) == boltVersion && order.Uint64(meta[56:]) == sum.Sum64()
}

// page reads a page with those that it flows over to, and takes them for its own.
func (w *walk) page(id uint64) (page []byte, flags, count int, err error) {
	if id < 2 || id >= w.pages {
		return nil, 0, 0, brokenPage(id, "is not there")
	}
	header := make([]byte, headerBytes)
	if _, err := w.file.ReadAt(header, int64(id*w.pageSize)); err != nil {
		return nil, 0, 0, err
	}
	over := uint64(order.Uint32(header[12:]))
	if order.Uint64(header) != id || over >= w.pages-id {
		return nil, 0, 0, brokenPage(id, "is not what it says")
	}
	for i := id; i <= id+over; i++ {
		if w.seen[i] {
			return nil, 0, 0, brokenPage(i, "is there twice")
		}
		w.seen[i] = true
	}
	page = make([]byte, (over+1)*w.pageSize)
	if _, err := w.file.ReadAt(page, int64(id*w.pageSize)); err != nil {
		return nil, 0, 0, err
	}
	return page, int(order.Uint16(page[8:])), int(order.Uint16(page[10:])), nil
}

// freelist goes through the list of free pages. A list so long that its length is not in
// the page's header is no store's.
func (w *walk) freelist(id uint64) error {
	page, flags, count, err := w.page(id)
	if err != nil {
		return err
	}
	if flags != freelistPage || count == 0xFFFF || headerBytes+count*idBytes > len(page) {
		return brokenPage(id, "is no list of free pages")
	}
	for i := range count {
		free := order.Uint64(page[headerBytes+i*idBytes:])
		if free < 2 || free >= w.pages || w.seen[free] {
			return brokenPage(free, "cannot be free")
		}
		w.seen[free] = true
	}
	return nil
}

// tree goes through the pages under one of them, whose keys are from low on and less than
// high; nil is no bound. The root's tree has buckets, and theirs have records. It ends,
// since no page is gone through twice.
func (w *walk) tree(id uint64, low, high []byte, root bool) error {
	page, flags, count, err := w.page(id)
	if err != nil {
		return err
	}
	switch flags {
	case leafPage:
		return w.leaf(id, page, count, low, high, root)
	case branchPage:
		return w.branch(id, page, count, low, high, root)
	}
	return brokenPage(id, "is of no kind that it can be")
}

func (w *walk) branch(id uint64, page []byte, count int, low, high []byte, root bool) error {
	keys, children := make([][]byte, count), make([]uint64, count)
	for i := range count {
		at := headerBytes + i*elementBytes
		if count == 0 || at+elementBytes > len(page) {
			return brokenPage(id, "has too many elements")
		}
		e := page[at:]
		var ok bool
		if keys[i], ok = part(page, at, order.Uint32(e), order.Uint32(e[4:])); !ok {
			return brokenPage(id, "has a key that is not there")
		}
		children[i] = order.Uint64(e[8:])
	}
	if count == 0 || !ascend(keys, low, high) {
		return brokenPage(id, "is out of order")
	}
	for i, child := range children {
		next := high
		if i+1 < count {
			next = keys[i+1]
		}
		if err := w.tree(child, slices.Clone(keys[i]), slices.Clone(next), root); err != nil {
			return err
		}
	}
	return nil
}

func (w *walk) leaf(id uint64, page []byte, count int, low, high []byte, root bool) error {
	keys := make([][]byte, count)
	for i := range count {
		at := headerBytes + i*elementBytes
		if at+elementBytes > len(page) {
			return brokenPage(id, "has too many elements")
		}
		e := page[at:]
		pos, keyBytes, valueBytes := order.Uint32(e[4:]), order.Uint32(e[8:]), order.Uint32(e[12:])
		key, ok := part(page, at, pos, keyBytes)
		value, there := part(page, at+int(pos)+int(keyBytes), 0, valueBytes)
		if !ok || !there || (order.Uint32(e) == isBucket) != root {
			return brokenPage(id, "has an element that is not there")
		}
		keys[i] = key
		if root {
			if err := w.bucket(id, value); err != nil {
				return err
			}
		}
	}
	if !ascend(keys, low, high) {
		return brokenPage(id, "is out of order")
	}
	return nil
}

// bucket goes through a bucket, whose one page may be a part of its value.
func (w *walk) bucket(id uint64, value []byte) error {
	if len(value) < bucketBytes {
		return brokenPage(id, "has half a bucket")
	}
	if root := order.Uint64(value); root != 0 {
		return w.tree(root, nil, nil, false)
	}
	page := value[bucketBytes:]
	if len(page) < headerBytes || order.Uint16(page[8:]) != leafPage {
		return brokenPage(id, "has half a bucket")
	}
	return w.leaf(id, page, int(order.Uint16(page[10:])), nil, nil, false)
}

// part is a part of a page, where that has it.
func part(page []byte, from int, pos, size uint32) ([]byte, bool) {
	start := uint64(from) + uint64(pos)
	end := start + uint64(size)
	if end > uint64(len(page)) {
		return nil, false
	}
	return page[start:end], true
}

// ascend tells whether keys rise, within bounds. None is empty.
func ascend(keys [][]byte, low, high []byte) bool {
	for i, key := range keys {
		switch {
		case len(key) == 0,
			i == 0 && low != nil && bytes.Compare(key, low) < 0,
			i > 0 && bytes.Compare(key, keys[i-1]) <= 0,
			high != nil && bytes.Compare(key, high) >= 0:
			return false
		}
	}
	return true
}
