package config

// followedContent is the content of a file, read again and again.
type followedContent[T comparable] struct {
	handled T // the last content that was accepted or rejected
	seen    T
}

// changed reports whether a content must be handled. Unless forced, a change is
// handled at the second sight: a write in place is incomplete for a moment, and
// a replaced file is absent for a moment.
func (f *followedContent[T]) changed(current T, force bool) bool {
	unchanged := current == f.seen
	f.seen = current
	if !force && (!unchanged || current == f.handled) {
		return false
	}
	f.handled = current
	return true
}
