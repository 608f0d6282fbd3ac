package proc

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"
	"syscall"
	"testing"
	"testing/fstest"
)

// id is a container's.
const id = "4f1c0a5d7e8b92364f1c0a5d7e8b92364f1c0a5d7e8b92364f1c0a5d7e8b9236"

// TestContainer has the control groups that engines make.
func TestContainer(t *testing.T) {
	for group, want := range map[string]string{
		"0::/system.slice/docker-" + id + ".scope\n":                        id,
		"12:memory:/docker/" + id + "\n11:cpu,cpuacct:/docker/" + id + "\n": id,
		"2:cpu:/\n1:name=systemd:/docker/" + id + "\n":                      id,
		"0::/docker/" + id + "/init\n":                                      id,
		"0::/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod5b7c_1.slice/cri-containerd-" + id + ".scope\n": id,
		"0::/kubepods/besteffort/pod5b7c-1/" + id + "\n":                                                                   id,
		"0::/kubepods-burstable-pod5b7c_1.slice:cri-containerd:" + id + "\n":                                               id,
		"0::/kubepods.slice/kubepods-pod5b7c.slice/crio-" + id + ".scope/container\n":                                      id,
		"0::/machine.slice/libpod-" + id + ".scope/container\n":                                                            id,
		"0::/user.slice/user-1000.slice/user@1000.service/user.slice/libpod-" + id + ".scope\n":                            id,
		"0::/libpod_parent/libpod-" + id + "\n":                                                                            id,
		"0::/system.slice/nerdctl-" + id + ".scope\n":                                                                      id,
		"0::/../../docker-" + id + ".scope\n":                                                                              id, // seen from a container
		"0::/system.slice/sshd.service\n":                                                                                  "",
		"0::/\n":                                                                                                           "",
		"":                                                                                                                 "",
		"0::/docker/" + strings.ToUpper(id) + "\n":                                                                         "",
		"0::/docker/" + id[1:] + "\n":                                                                                      "",
		"0::/docker/0" + id + "\n":                                                                                         "",
		"0::/system.slice/backup" + id + ".service\n":                                                                      "",
		"0::/a" + id + "b\n":                                                                                               "",
	} {
		if got := containerOf(group); got != want {
			t.Errorf("%q: %q, want %q", group, got, want)
		}
	}
}

// TestFiles reads a /proc whose processes say what the kernel lets them.
func TestFiles(t *testing.T) {
	p := New(fstest.MapFS{
		"97/status": {Data: []byte("Name:\tmy prog\x1b[2J\nUmask:\t0022\nTgid:\t94\nPid:\t97\n")},
		"98/status": {Data: []byte("Tgid:\tx\n")},
		"94/comm":   {Data: []byte("a\nb\xff\n")},
		"94/cgroup": {Data: []byte("0::/docker/" + id + "\n")},
		"94/ns/net": {Data: []byte("net:[4026531840]"), Mode: fs.ModeSymlink},
		"95/ns/net": {Data: []byte("somewhere"), Mode: fs.ModeSymlink},
	})
	if pid, name, err := p.Thread(97); pid != 94 || name != "my prog?[2J" || err != nil {
		t.Errorf("thread 97: %d, %q, %v", pid, name, err)
	}
	if pid, name, err := p.Thread(98); pid != 98 || name != "" || err != nil {
		t.Errorf("thread 98: %d, %q, %v", pid, name, err)
	}
	if pid, name, err := p.Thread(99); pid != 99 || name != "" || !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("thread 99, which has ended: %d, %q, %v", pid, name, err)
	}
	if got := fmt.Sprintf("%q %q %q", p.Name(94), p.Container(94), p.Netns(94)); got != fmt.Sprintf("%q %q %q", "a?b\ufffd", id, "4026531840") {
		t.Errorf("process 94: %s", got)
	}
	if got := fmt.Sprintf("%q %q %q %q", p.Name(95), p.Container(95), p.Netns(95), p.Netns(96)); got != `"" "" "" ""` {
		t.Errorf("of processes that are gone or closed: %s", got)
	}
}

// ending has files of a process that ends when they are read.
type ending struct{}

func (ending) Open(name string) (fs.File, error) {
	return nil, &fs.PathError{Op: "read", Path: name, Err: syscall.ESRCH}
}

// TestEnding: a process may end between open(2) and read(2).
func TestEnding(t *testing.T) {
	if _, _, err := New(ending{}).Thread(7); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the error is %v", err)
	}
}

// TestSelf reads the /proc of this machine.
func TestSelf(t *testing.T) {
	self := uint32(os.Getpid())
	pid, name, err := System.Thread(self)
	if pid != self || name == "" || err != nil {
		t.Errorf("this process: %d, %q, %v", pid, name, err)
	}
	link, err := os.Readlink("/proc/self/ns/net")
	if err != nil || "net:["+System.Netns(self)+"]" != link {
		t.Errorf("network namespace %q, want %q, %v", System.Netns(self), link, err)
	}
	if got := System.Name(self); got != name {
		t.Errorf("the name is %q, its first thread's %q", got, name)
	}
}

// FuzzContainer: whatever is found is an ID.
func FuzzContainer(f *testing.F) {
	f.Add("0::/docker-" + id + ".scope")
	f.Fuzz(func(t *testing.T, group string) {
		if got := containerOf(group); got != "" && (len(got) != idLength || !strings.Contains(group, got)) {
			t.Errorf("%q: %q", group, got)
		}
	})
}
