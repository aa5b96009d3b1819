package app

import (
	"debug/elf"
	"fmt"

	"golang.org/x/sys/unix"
)

// dropProgramPages unmaps the pages of the program's file that are never written: most serve the start alone. The kernel keeps them in
// its cache, and maps the pages in use again.
func dropProgramPages() error {
	file, err := elf.Open("/proc/self/exe")
	if err != nil {
		return err
	}
	defer file.Close() //nolint:errcheck // it is only read
	if file.Type != elf.ET_EXEC {
		return fmt.Errorf("%v has other addresses in the file than in the process", file.Type)
	}
	for _, p := range file.Progs {
		if p.Type != elf.PT_LOAD || p.Flags&elf.PF_W != 0 {
			continue
		}
		begin := p.Vaddr &^ uint64(unix.Getpagesize()-1)
		if _, _, errno := unix.Syscall(unix.SYS_MADVISE, uintptr(begin), uintptr(p.Vaddr+p.Memsz-begin), unix.MADV_DONTNEED); errno != 0 {
			return fmt.Errorf("madvise: %w", errno)
		}
	}
	return nil
}
