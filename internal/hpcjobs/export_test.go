package hpcjobs

// FollowReads is Follow with a function that reads, because in a synctest
// bubble, time stands still while a system call hangs.
var FollowReads = follow
