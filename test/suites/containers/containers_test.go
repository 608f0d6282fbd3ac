package containers

import (
	"context"
	_ "embed"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/goverbs/goverbs/test/testenv"
)

// Variables that are 1 in the boots of the suite containers.
const (
	sharedEnv    = "GOVERBS_CONTAINERS"           // a VM with rxe
	exclusiveEnv = "GOVERBS_CONTAINERS_EXCLUSIVE" // a VM with a modelled ConnectX
)

// The page whose commands the tests run, and the profile that it uses.
var (
	//go:embed README.md
	page string
	//go:embed seccomp.json
	profile []byte
)

func TestMain(m *testing.M) {
	if os.Getenv(sandboxed) == "1" {
		if err := runSandboxed(os.Args[1:]); err != nil {
			fmt.Println("failed:", err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	if os.Getenv(sharedEnv)+os.Getenv(exclusiveEnv) == "1" {
		if err := setUp(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
	}
	os.Exit(testenv.MainFor(m, map[string]string{"rxe": "", "mlx5": ""}))
}

// engine is the configuration of podman in a VM, whose root is no file system that can be left by
// pivot_root(2). A container is without a network if it does not ask for one.
const engine = `[engine]
cgroup_manager = "cgroupfs"
events_logger = "none"
no_pivot_root = true
[containers]
log_driver = "k8s-file"
netns = "none"
`

// setUp prepares the VM for podman.
func setUp() error {
	if out, err := exec.Command("mount", "-t", "cgroup2", "cgroup2", "/sys/fs/cgroup").CombinedOutput(); err != nil {
		return fmt.Errorf("mount cgroup2: %w: %s", err, out)
	}
	for _, dir := range []string{"/etc/containers", "/etc/cdi"} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return err
		}
	}
	return os.WriteFile("/etc/containers/containers.conf", []byte(engine), 0o644)
}

// section returns the commands of a section of the page, a text for each block.
func section(t *testing.T, heading string) []string {
	t.Helper()
	_, text, ok := strings.Cut(page, "\n## "+heading+"\n")
	if !ok {
		t.Fatalf("README.md has no section %q", heading)
	}
	text, _, _ = strings.Cut(text, "\n## ")
	var blocks []string
	last := false // the last line was of a block
	for l := range strings.Lines(text) {
		command, is := strings.CutPrefix(l, "    ")
		switch {
		case is && last:
			blocks[len(blocks)-1] += command
		case is:
			blocks = append(blocks, command)
		}
		last = is
	}
	return blocks
}

// named returns a text of the page with the names of this VM's devices.
func named(text string) string {
	d := testenv.TheRig().Devices
	return strings.NewReplacer("mlx5_0", d[0], "mlx5_1", d[1]).Replace(text)
}

// patience limits the time of a block of commands.
const patience = 5 * time.Minute

// shell runs commands of the page and returns what they print on standard output. It fails the test if one
// of them fails.
func shell(t *testing.T, commands string) string {
	t.Helper()
	out, err := try(t, "sh", "-ec", named(commands))
	if err != nil {
		t.Fatalf("%s\nfails: %v\n%s", commands, err, out)
	}
	return out
}

// try runs a program and returns all that it prints.
func try(t *testing.T, args ...string) (string, error) {
	t.Helper()
	ctx, stop := context.WithTimeout(t.Context(), patience)
	defer stop()
	cmd := exec.CommandContext(ctx, args[0], args[1:]...)
	cmd.Dir = directory(t)
	cmd.WaitDelay = time.Second
	out, err := cmd.CombinedOutput()
	return string(out), err
}

// directory returns the directory with the files that the commands of the page need.
func directory(t *testing.T) string {
	t.Helper()
	dir := filepath.Join(os.TempDir(), "containers")
	if _, err := os.Stat(dir); err == nil {
		return dir
	}
	program, err := os.ReadFile("/bin/pingpong")
	must(t, err)
	must(t, os.Mkdir(dir, 0o755))
	must(t, os.WriteFile(filepath.Join(dir, "pingpong"), program, 0o755))
	must(t, os.WriteFile(filepath.Join(dir, "seccomp.json"), profile, 0o644))
	return dir
}

// image builds the image as the page does, but for the program, which is there already.
func image(t *testing.T) {
	t.Helper()
	t.Cleanup(func() { // what a test that has failed left
		if out, err := exec.Command("podman", "rm", "--all", "--force", "--time", "0").CombinedOutput(); err != nil {
			t.Errorf("podman rm: %v: %s", err, out)
		}
	})
	if exec.Command("podman", "image", "exists", "pingpong").Run() == nil {
		return
	}
	compile, rest, _ := strings.Cut(section(t, "Image")[0], "\n")
	if !strings.HasPrefix(compile, "CGO_ENABLED=0 go build ") {
		t.Fatalf("the page builds the program by %q", compile)
	}
	shell(t, rest)
}

// played is what pingpong prints at the end.
var played = regexp.MustCompile(`(?m)^user (\d+): 100 exchanges of 64 bytes in `)

// wantPlayed checks that both containers have played, as user 1000.
func wantPlayed(t *testing.T, out string) {
	t.Helper()
	if got := played.FindAllStringSubmatch(out, -1); len(got) != 2 || got[0][1] != "1000" || got[1][1] != "1000" {
		t.Errorf("not two containers have played as user 1000:\n%s", out)
	}
}

// must fails a test on an error.
var must = testenv.Must

// option finds what an error says to add to the command line.
var option = regexp.MustCompile(`--(device /dev/infiniband/\w+|group-add \d+|network host|ulimit memlock=-1|security-opt seccomp=FILE)`)

// follow runs the client in a container, adds what its error says, and so on until it has played with a
// server outside of containers. It checks which options were added, in their order.
func follow(t *testing.T, options []string, want ...string) {
	t.Helper()
	address := testenv.TheRig().Addrs[0] + ":7472"
	server := exec.CommandContext(t.Context(), "/bin/pingpong", "-listen", address)
	must(t, server.Start())
	var added []string
	for {
		out, err := try(t, slices.Concat([]string{"podman", "run", "--rm", "--user", "1000"}, options, []string{"pingpong", address})...)
		if err == nil {
			break
		}
		say := option.FindString(out)
		if say == "" || slices.Contains(added, say) {
			t.Fatalf("with options %q and added %q the error says nothing new: %v\n%s", options, added, err, out)
		}
		added = append(added, say)
		name, value, _ := strings.Cut(strings.Replace(say, "seccomp=FILE", "seccomp=unconfined", 1), " ")
		options = append(slices.Clip(options), name, value)
	}
	if err := server.Wait(); err != nil {
		t.Errorf("server: %v", err)
	}
	if !slices.Equal(added, want) {
		t.Errorf("the errors said to add %q, want %q", added, want)
	}
}
