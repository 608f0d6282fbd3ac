package main

import (
	"archive/tar"
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
)

// architectures lists the processors that a release has programs for.
var architectures = []string{"amd64", "arm64"}

// Media types of the OCI image format.
const (
	indexType    = "application/vnd.oci.image.index.v1+json"
	manifestType = "application/vnd.oci.image.manifest.v1+json"
	configType   = "application/vnd.oci.image.config.v1+json"
	layerType    = "application/vnd.oci.image.layer.v1.tar"
)

// descriptor refers to a blob of an image.
type descriptor struct {
	MediaType string            `json:"mediaType"`
	Digest    string            `json:"digest"`
	Size      int               `json:"size"`
	Platform  map[string]string `json:"platform,omitempty"`
}

// image writes a container with nothing but verbs, for all architectures, as an OCI archive. The same programs
// give the same bytes.
func image(dir, out string) error {
	var b bytes.Buffer
	archive := tar.NewWriter(&b)
	written := map[string]bool{}
	blob := func(mediaType string, content []byte) descriptor {
		sum := fmt.Sprintf("%x", sha256.Sum256(content))
		if !written[sum] {
			add(archive, "blobs/sha256/"+sum, 0o644, content)
			written[sum] = true
		}
		return descriptor{MediaType: mediaType, Digest: "sha256:" + sum, Size: len(content)}
	}
	var manifests []descriptor
	for _, arch := range architectures {
		program, err := os.ReadFile(filepath.Join(dir, arch, "verbs"))
		if err != nil {
			return err
		}
		var l bytes.Buffer
		files := tar.NewWriter(&l)
		add(files, "verbs", 0o755, program)
		files.Close()
		layer := blob(layerType, l.Bytes())
		config := blob(configType, encode(map[string]any{
			"architecture": arch, "os": "linux", "config": map[string]any{"Entrypoint": []string{"/verbs"}},
			"rootfs": map[string]any{"type": "layers", "diff_ids": []string{layer.Digest}},
		}))
		manifest := blob(manifestType, encode(map[string]any{"schemaVersion": 2, "mediaType": manifestType, "config": config, "layers": []descriptor{layer}}))
		manifest.Platform = map[string]string{"architecture": arch, "os": "linux"}
		manifests = append(manifests, manifest)
	}
	add(archive, "oci-layout", 0o644, []byte(`{"imageLayoutVersion": "1.0.0"}`))
	add(archive, "index.json", 0o644, encode(map[string]any{"schemaVersion": 2, "mediaType": indexType, "manifests": manifests}))
	archive.Close()
	return write(out, b.Bytes())
}

// add adds a file to an archive in memory, where writing cannot fail.
func add(w *tar.Writer, name string, mode int64, content []byte) {
	w.WriteHeader(&tar.Header{Name: name, Mode: mode, Size: int64(len(content)), Format: tar.FormatUSTAR})
	w.Write(content)
}

// encode encodes what JSON has a form for.
func encode(v any) []byte {
	b, err := json.Marshal(v)
	if err != nil {
		panic(err)
	}
	return b
}
