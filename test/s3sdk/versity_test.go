package s3sdk

import (
	"bufio"
	"bytes"
	"crypto/rand"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/goverbs/goverbs/cm/s3rdma"
	"github.com/goverbs/goverbs/test/testenv"
	"github.com/goverbs/goverbs/uverbs"
)

// TestVersity has the memory of versitygw's client, which libmlx5 registers and makes a target for,
// as what a server of this module reads and writes.
func TestVersity(t *testing.T) {
	testenv.Boot(t, "GOVERBS_VERSITY", "s3/versity")
	const size = 3<<20 + 5
	devices := testenv.TheRig().Devices
	cmd := exec.Command("/bin/versity-client", devices[0], fmt.Sprint(testenv.TheRig().GID), fmt.Sprint(size))
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	testenv.Must(t, err)
	pipe, err := cmd.StdoutPipe()
	testenv.Must(t, err)
	testenv.Must(t, cmd.Start())
	defer func() {
		in.Close()
		testenv.Must(t, cmd.Wait())
	}()
	out := bufio.NewReader(pipe)
	text, err := out.ReadString('\n')
	testenv.Must(t, err)
	text = strings.TrimSpace(text)
	token, err := s3rdma.ParseToken(text)
	if err != nil || token.String() != text || token.Size != size {
		t.Fatalf("the token %q is parsed as %q of %d bytes, %v", text, token, token.Size, err)
	}

	dev, err := uverbs.Open(devices[1], uverbs.OpenOptions{})
	testenv.Must(t, err)
	defer dev.Close()
	i, err := s3rdma.NewInitiator(dev, s3rdma.InitiatorOptions{Networks: []netip.Prefix{netip.MustParsePrefix("0.0.0.0/0"), netip.MustParsePrefix("::/0")}})
	testenv.Must(t, err)
	defer i.Close()
	dir := t.TempDir()
	s := httptest.NewServer(i.Handler(&store{dir}, s3rdma.HandlerOptions{Report: func(_ *http.Request, _ int64, err error) {
		if err != nil {
			t.Errorf("the server reports %v, token %s", err, text)
		}
	}}))
	defer s.Close()
	do := func(method string) {
		t.Helper()
		req, err := http.NewRequest(method, s.URL+"/bucket/object", nil)
		testenv.Must(t, err)
		req.Header.Set("X-Amz-Rdma-Token", text)
		resp, err := http.DefaultClient.Do(req)
		testenv.Must(t, err)
		resp.Body.Close()
		if resp.StatusCode != 200 || resp.Header.Get("X-Amz-Rdma-Reply") != "200" || resp.Header.Get("X-Amz-Rdma-Bytes-Transferred") != fmt.Sprint(size) {
			t.Fatalf("%s: %s %v", method, resp.Status, resp.Header)
		}
	}
	data := make([]byte, size)
	rand.Read(data)
	_, err = in.Write(append([]byte("load\n"), data...))
	testenv.Must(t, err)
	if line, err := out.ReadString('\n'); line != "loaded\n" {
		t.Fatalf("the client says %q, %v", line, err)
	}
	do(http.MethodPut)
	if got, err := os.ReadFile(filepath.Join(dir, "object")); err != nil || !bytes.Equal(got, data) {
		t.Errorf("the server has %d bytes, %v, or other data", len(got), err)
	}
	rand.Read(data)
	testenv.Must(t, os.WriteFile(filepath.Join(dir, "object"), data, 0o600))
	do(http.MethodGet)
	_, err = io.WriteString(in, "dump\n")
	testenv.Must(t, err)
	got := make([]byte, size)
	if _, err := io.ReadFull(out, got); err != nil || !bytes.Equal(got, data) {
		t.Errorf("the client has other data, %v", err)
	}
}
