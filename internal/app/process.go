package app

import "time"

// version is set by the Makefile.
var version = "dev"

// shutdownTimeout limits the end of the process. A longer call hangs in the
// driver: a wait for events takes two seconds.
const shutdownTimeout = 3 * time.Second

// envLookup finds an environment variable, as os.LookupEnv does.
type envLookup func(name string) (value string, set bool)
