// Package state keeps what is known of the devices' health from one process to the next.
package state
