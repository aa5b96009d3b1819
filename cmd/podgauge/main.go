// Command podgauge is the device plugin for a node's NVIDIA GPUs and exports
// their metrics, labelled with the pod that holds each.
package main

import (
	"os"

	"github.com/podgauge/podgauge/internal/app"
)

func main() { os.Exit(app.Main()) }
