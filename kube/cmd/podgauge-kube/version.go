package main

// version is set by the Makefile.
var version = "dev"
