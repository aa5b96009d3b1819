package nvml

// LibraryInfo says which library there is, and what it lacks.
type LibraryInfo struct {
	Library string // the file that is loaded; empty: none was found that can be used
	Version string // of the driver; empty while the library is not initialised
	// MissingFunctions are functions that this package has a use for and the library has not, under
	// no name. What that costs says Missing.
	MissingFunctions []string
}

// LibraryInfo asks nobody, and may be called while Devices is under way: where the library hangs
// in its initialisation, it is told already which one it is.
func (b *Backend) LibraryInfo() LibraryInfo {
	if about := b.libraryInfo.Load(); about != nil {
		return *about
	}
	return LibraryInfo{}
}
