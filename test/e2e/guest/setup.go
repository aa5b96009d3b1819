package guest

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"time"

	"github.com/podgauge/podgauge/test/e2e/node"
	"github.com/podgauge/podgauge/test/e2e/programs"
)

// Mmdebstrap creates the guest's Debian.
var Mmdebstrap = node.RequiredTool{File: "mmdebstrap", Package: "mmdebstrap"}

// kernelRelease is Debian's release of the guest's kernel. From Linux 6.16 the
// guest's programs need no ptrace, and are two to three times as fast as with
// the kernel of Debian 12. The kernel needs the C library of its release.
const kernelRelease = "forky"

// packages of the guest's Debian in addition to the essential ones. The
// machine's programs are below.
const packages = "systemd,systemd-sysv,dbus,kmod"

// version is that of the guest's files. SetUp creates the files of another
// version again.
const version = "1\n"

// filesDir returns the folder of SetUp, or an error with the command.
func filesDir() (string, error) {
	dir, err := programs.CacheDir("guest")
	if err != nil {
		return "", err
	}
	if got, err := os.ReadFile(filepath.Join(dir, "stamp")); err != nil || string(got) != version {
		return "", errors.New("no guest: run `go run ./cmd/e2e setup guest` in test/e2e")
	}
	return dir, nil
}

// SetUp creates the guest's files in the cache folder, if missing: root, a
// Debian with systemd and the kernel, and libc, the kernel's C library.
func SetUp(ctx context.Context, log io.Writer) error {
	begin := time.Now()
	dir, err := programs.CacheDir("guest")
	if err != nil {
		return err
	}
	if _, err := filesDir(); err != nil {
		if err := create(ctx, dir, log); err != nil {
			return fmt.Errorf("set up the guest: %w", err)
		}
	}
	fmt.Fprintf(log, "guest: %s (%s)\n", dir, time.Since(begin).Round(time.Second))
	return nil
}

func create(ctx context.Context, dir string, log io.Writer) error {
	release, err := machineRelease()
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(dir), 0o755); err != nil {
		return err
	}
	temporary, err := os.MkdirTemp(filepath.Dir(dir), "guest-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(temporary)
	root := filepath.Join(temporary, "root")
	if err := run(ctx, temporary, log, "mmdebstrap", "--mode=root", "--variant=minbase", "--skip=check/empty",
		"--include="+packages, "--dpkgopt=path-exclude=/usr/share/doc/*", "--dpkgopt=path-exclude=/usr/share/man/*",
		"--dpkgopt=path-exclude=/usr/share/locale/*", release, root, mirror(ctx)); err != nil {
		return err
	}
	if err := addKernel(ctx, temporary, log); err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(temporary, "stamp"), []byte(version), 0o644); err != nil {
		return err
	}
	return errors.Join(os.RemoveAll(dir), os.Chmod(temporary, 0o755), os.Rename(temporary, dir))
}

// addKernel adds packages of kernelRelease: the kernel with its modules to
// root, and the C library to libc.
func addKernel(ctx context.Context, dir string, log io.Writer) error {
	apt := filepath.Join(dir, "apt")
	for _, name := range []string{"lists/partial", "cache/archives/partial", "packages"} {
		if err := os.MkdirAll(filepath.Join(apt, name), 0o755); err != nil {
			return err
		}
	}
	defer os.RemoveAll(apt)
	const keyring = "/usr/share/keyrings/debian-archive-keyring.gpg"
	sources := fmt.Sprintf("deb [signed-by=%s] %s %s main\n", keyring, mirror(ctx), kernelRelease)
	if err := os.WriteFile(filepath.Join(apt, "sources.list"), []byte(sources), 0o644); err != nil {
		return err
	}
	options := []string{
		"apt-get", "-q", "-o", "Dir::Etc::sourcelist=" + apt + "/sources.list", "-o", "Dir::Etc::sourceparts=/dev/null",
		"-o", "Dir::State::lists=" + apt + "/lists", "-o", "Dir::Cache=" + apt + "/cache",
		"-o", "APT::Sandbox::User=root",
	}
	packages := filepath.Join(apt, "packages")
	if err := run(ctx, packages, log, append(options, "update")...); err != nil {
		return err
	}
	if err := run(ctx, packages, log, append(options, "download", "user-mode-linux", "libc6")...); err != nil {
		return err
	}
	for name, to := range map[string]string{"user-mode-linux": "root", "libc6": "libc"} {
		files, err := filepath.Glob(filepath.Join(packages, name+"_*.deb"))
		if err != nil || len(files) != 1 {
			return fmt.Errorf("packages %s: got %q", name, files)
		}
		if err := run(ctx, dir, log, "dpkg-deb", "-x", files[0], to); err != nil {
			return err
		}
	}
	return os.Symlink("uml/modules", filepath.Join(dir, "root/usr/lib/modules"))
}

func run(ctx context.Context, dir string, log io.Writer, args ...string) error {
	command := exec.CommandContext(ctx, args[0], args[1:]...)
	command.Dir, command.Stdout, command.Stderr = dir, log, log
	if err := command.Run(); err != nil {
		return fmt.Errorf("%s: %w", strings.Join(args, " "), err)
	}
	return nil
}

// machineRelease returns the name of the machine's release of Debian.
func machineRelease() (string, error) {
	b, err := os.ReadFile("/etc/os-release")
	if err != nil {
		return "", err
	}
	found := regexp.MustCompile(`(?m)^VERSION_CODENAME=(\w+)$`).FindSubmatch(b)
	if found == nil {
		return "", errors.New("/etc/os-release has no VERSION_CODENAME: the guest requires Debian")
	}
	return string(found[1]), nil
}

// mirror returns the machine's source of Debian's packages.
func mirror(ctx context.Context) string {
	out, _ := exec.CommandContext(ctx, "apt-get", "indextargets", "--format", "$(SITE)", "Created-By: Packages",
		"Label: Debian").Output()
	first, _, _ := strings.Cut(string(out), "\n")
	return cmp.Or(first, "http://deb.debian.org/debian")
}
