package uverbs

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/goverbs/goverbs/uverbs/ib"
)

// FuzzSysfs: whatever the files of a port contain, a partition key is the number in its file, and an entry
// of the GID table has the GID, the type and the interface in its files.
func FuzzSysfs(f *testing.F) {
	f.Add("0xffff\n", "fe80:0000:0000:0000:0000:00ff:fe00:0001\n", "RoCE v2\n", "3\n")
	f.Add("-1", "0000:0000:0000:0000:0000:0000:0000:0000", "IB/RoCE v1", "x")
	f.Add("0x10000", "::1", "", "")
	f.Fuzz(func(t *testing.T, pkey, gid, typ, ifindex string) {
		if len(pkey)+len(gid)+len(typ)+len(ifindex) > 4000 { // files of sysfs are not longer than a page
			return
		}
		line := func(text string) string {
			first, _, _ := strings.Cut(text, "\n")
			return strings.TrimSpace(first)
		}
		root := filepath.Join(t.TempDir(), "infiniband")
		port := sysfsPort(root, "d0", 1)
		for path, text := range map[string]string{
			filepath.Join(port, "pkeys", "0"): pkey, filepath.Join(port, "gids", "2"): gid,
			filepath.Join(port, "gid_attrs", "types", "2"): typ, filepath.Join(port, "gid_attrs", "ndevs", "2"): "eth0\n",
			filepath.Join(filepath.Dir(root), "net", "eth0", "ifindex"): ifindex,
		} {
			must(t, os.MkdirAll(filepath.Dir(path), 0o700))
			must(t, os.WriteFile(path, []byte(text), 0o600))
		}
		got, err := sysfsPKey(root, "d0", 1, 0)
		if want, werr := strconv.ParseUint(line(pkey), 0, 16); err == nil && (werr != nil || uint64(got) != want) {
			t.Errorf("partition key %q is %#x, want %#x, %v", pkey, got, want, werr)
		}
		e, used, err := sysfsGID(root, "d0", 1, 2, ib.LinkLayerEthernet)
		if want, werr := ib.ParseGID(line(gid)); used && (werr != nil || e.GID != want || e.GID.IsZero() || err != nil) {
			t.Errorf("GID %q is %v, %v, want %v", gid, e.GID, err, want)
		}
		if !used {
			return
		}
		if e.Port != 1 || e.Index != 2 || e.Type != ib.GIDTypeRoCEv1 && e.Type != ib.GIDTypeRoCEv2 || (e.Type == ib.GIDTypeRoCEv2) && line(typ) != "RoCE v2" {
			t.Errorf("type %q gives %+v", typ, e)
		}
		if n, err := strconv.Atoi(line(ifindex)); e.Netdev != 0 && err == nil && e.Netdev != n {
			t.Errorf("interface %q is %d", ifindex, e.Netdev)
		}
	})
}
