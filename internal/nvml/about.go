package nvml

// About says which library there is, and what it lacks.
type About struct {
	Library string // the file that is loaded; empty: none was found that can be used
	Version string // of the driver; empty while the library is not initialised
	// Lacks are functions that this package has a use for and the library has not, under
	// no name. What that costs says Missing.
	Lacks []string
}

// About asks nobody, and may be called while Devices is under way: where the library hangs
// in its initialisation, it is told already which one it is.
func (b *Backend) About() About {
	if about := b.about.Load(); about != nil {
		return *about
	}
	return About{}
}

// lacks names the functions that cannot be called, in the order of the rows.
func (has symbols) lacks() (names []string) {
	for _, f := range functions {
		if !has[f.symbol] {
			names = append(names, f.symbol)
		}
	}
	return names
}
