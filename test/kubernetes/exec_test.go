package kubernetes

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/types"
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/cri-streaming/pkg/streaming/remotecommand"
	"k8s.io/streaming/pkg/httpstream/wsstream"
	utilexec "k8s.io/utils/exec"
)

// pods runs commands in containers, which are processes of this machine: each pod has a variable of its own in the
// environment. It implements remotecommand.Executor.
type pods map[string]string

// ExecInContainer implements remotecommand.Executor.
func (p pods) ExecInContainer(ctx context.Context, pod, _, _ string, words []string, in io.Reader, out, log io.WriteCloser, _ bool, _ <-chan remotecommand.TerminalSize, _ time.Duration) error {
	cmd := exec.CommandContext(ctx, words[0], words[1:]...)
	cmd.Env, cmd.Stdout, cmd.Stderr = append(os.Environ(), p[pod]), out, log
	cmd.WaitDelay = time.Second // for the copy of the input
	stdin, err := cmd.StdinPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return utilexec.CodeExitError{Err: err, Code: 127}
	}
	go func() {
		io.Copy(stdin, in)
		stdin.Close()
	}()
	err = cmd.Wait()
	if e, ok := errors.AsType[*exec.ExitError](err); ok {
		return utilexec.CodeExitError{Err: err, Code: e.ExitCode()}
	}
	return err
}

// websocket runs a command in a pod for a client that speaks websockets, which the API server translates for the kubelet.
func (p pods) websocket(w http.ResponseWriter, r *http.Request, pod string, words []string) {
	channels := []wsstream.ChannelType{wsstream.ReadChannel, wsstream.WriteChannel, wsstream.WriteChannel, wsstream.WriteChannel, wsstream.ReadChannel}
	conn := wsstream.NewConn(map[string]wsstream.ChannelProtocolConfig{"v5.channel.k8s.io": {Binary: true, Channels: channels}})
	_, s, err := conn.Open(w, r)
	if err != nil {
		return // the client knows
	}
	defer conn.Close()
	status := metav1.Status{Status: metav1.StatusSuccess}
	if err := p.ExecInContainer(r.Context(), pod, "", "", words, s[0], s[1], s[2], false, nil, 0); err != nil {
		status.Status, status.Message = metav1.StatusFailure, err.Error()
		if e, ok := errors.AsType[utilexec.CodeExitError](err); ok {
			status.Reason = "NonZeroExitCode"
			status.Details = &metav1.StatusDetails{Causes: []metav1.StatusCause{{Type: "ExitCode", Message: strconv.Itoa(e.Code)}}}
		}
	}
	json.NewEncoder(s[3]).Encode(status)
}

// serve serves as much of the API as "kubectl exec" needs. It returns the address, and counts the commands by websockets
// and by SPDY.
func (p pods) serve(t *testing.T, websockets, spdy *atomic.Int32) string {
	t.Helper()
	mux := http.NewServeMux()
	for at, v := range map[string]any{ // how kubectl finds what a pod is
		"/api":    metav1.APIVersions{TypeMeta: metav1.TypeMeta{Kind: "APIVersions", APIVersion: "v1"}, Versions: []string{"v1"}},
		"/apis":   metav1.APIGroupList{TypeMeta: metav1.TypeMeta{Kind: "APIGroupList", APIVersion: "v1"}},
		"/api/v1": metav1.APIResourceList{TypeMeta: metav1.TypeMeta{Kind: "APIResourceList", APIVersion: "v1"}, GroupVersion: "v1", APIResources: []metav1.APIResource{{Name: "pods", SingularName: "pod", Namespaced: true, Kind: "Pod", Verbs: metav1.Verbs{"get"}}}},
	} {
		mux.HandleFunc("GET "+at, func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "application/json")
			json.NewEncoder(w).Encode(v)
		})
	}
	const path = "/api/v1/namespaces/default/pods/{pod}"
	mux.HandleFunc("GET "+path, func(w http.ResponseWriter, r *http.Request) {
		name := r.PathValue("pod")
		w.Header().Set("Content-Type", "application/json")
		if _, ok := p[name]; !ok {
			w.WriteHeader(http.StatusNotFound)
			json.NewEncoder(w).Encode(metav1.Status{
				TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}, Status: metav1.StatusFailure, Reason: metav1.StatusReasonNotFound,
				Code: http.StatusNotFound, Message: fmt.Sprintf("pods %q not found", name),
			})
			return
		}
		json.NewEncoder(w).Encode(corev1.Pod{
			TypeMeta:   metav1.TypeMeta{Kind: "Pod", APIVersion: "v1"},
			ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "default", UID: types.UID(name)},
			Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "main"}}},
			Status:     corev1.PodStatus{Phase: corev1.PodRunning},
		})
	})
	mux.HandleFunc(path+"/exec", func(w http.ResponseWriter, r *http.Request) {
		q := r.URL.Query()
		if wsstream.IsWebSocketRequest(r) {
			websockets.Add(1)
			p.websocket(w, r, r.PathValue("pod"), q["command"])
			return
		}
		spdy.Add(1)
		o := &remotecommand.Options{Stdin: q.Get("stdin") == "true", Stdout: q.Get("stdout") == "true", Stderr: q.Get("stderr") == "true", TTY: q.Get("tty") == "true"}
		remotecommand.ServeExec(w, r, p, r.PathValue("pod"), "", q.Get("container"), q["command"], o, time.Hour, time.Minute, remotecommand.SupportedStreamingProtocols)
	})
	s := httptest.NewServer(mux)
	t.Cleanup(s.Close)
	return s.URL
}

// TestMeshVia: the pods that only "kubectl exec" reaches are tested without a secret and without listening, and a pod that
// there is not is named with what kubectl says.
func TestMeshVia(t *testing.T) {
	dir := t.TempDir()
	for name, pkg := range map[string][]string{"kubectl": {"./kubectl"}, "verbs": {"-C", "../..", "./tools/verbs"}} {
		args := append(append([]string{"build"}, pkg[:len(pkg)-1]...), "-o", filepath.Join(dir, name), pkg[len(pkg)-1])
		if out, err := exec.CommandContext(t.Context(), "go", args...).CombinedOutput(); err != nil {
			t.Fatalf("go %q: %v\n%s", args, err, out)
		}
	}
	l, err := net.ListenPacket("udp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	port := l.LocalAddr().(*net.UDPAddr).Port
	l.Close()
	p := pods{}
	for i := range 3 {
		p[fmt.Sprintf("pod-%d", i+1)] = fmt.Sprintf("GOVERBS_SOFT=127.0.0.%d:%d,name=rail0", i+1, port)
	}
	for _, c := range []struct {
		name             string
		websockets, spdy int32
		pods             []string
		status           int
		want             string // in the evidence
	}{
		{"websocket", 3, 0, []string{"pod-1", "pod-2", "pod-3"}, 0, ""},
		{"spdy", 0, 2, []string{"pod-1", "pod-2"}, 0, ""},
		{"no pod", 2, 0, []string{"pod-1", "pod-2", "pod-9"}, 1, `pod-9 --" has ended: exit status 1, standard error ends with "Error from server (NotFound): pods \"pod-9\" not found"`},
	} {
		t.Run(c.name, func(t *testing.T) {
			var websockets, spdy atomic.Int32
			cmd := exec.CommandContext(t.Context(), filepath.Join(dir, "verbs"), append([]string{"mesh", "run", "--json", "--types", "rc", "--iterations", "100", "--messages", "100", "--latency-ratio", "1000", "--bandwidth-ratio", "0.001",
				"--verbs-path", filepath.Join(dir, "verbs"), "--via", fmt.Sprintf("%s/kubectl --server %s --kubeconfig /dev/null exec -i {host} --", dir, p.serve(t, &websockets, &spdy))}, c.pods...)...)
			cmd.Env = append(os.Environ(), "KUBECTL_REMOTE_COMMAND_WEBSOCKETS="+strconv.FormatBool(c.websockets > 0), "HOME="+dir)
			var log bytes.Buffer
			cmd.Stderr = &log
			out, err := cmd.Output()
			var r struct {
				OK           bool
				Measurements []struct {
					Bandwidth *float64 `json:"gbit_per_s"`
				}
				Findings []struct{ Evidence []string }
			}
			if jerr := json.Unmarshal(out, &r); jerr != nil || cmd.ProcessState.ExitCode() != c.status {
				t.Fatalf("%v, %v\n%s%s", err, jerr, out, log.String())
			}
			if websockets.Load() != c.websockets || spdy.Load() != c.spdy {
				t.Errorf("%d commands by websockets and %d by SPDY, want %d and %d", websockets.Load(), spdy.Load(), c.websockets, c.spdy)
			}
			if c.want == "" {
				if n := len(c.pods) * (len(c.pods) - 1); !r.OK || len(r.Measurements) != n {
					t.Errorf("%d measurements, want %d: %s", len(r.Measurements), n, out)
				}
				for _, m := range r.Measurements {
					if m.Bandwidth == nil || *m.Bandwidth <= 0 {
						t.Errorf("%+v", m)
					}
				}
			} else if len(r.Findings) != 1 || !strings.Contains(strings.Join(r.Findings[0].Evidence, ""), c.want) {
				t.Errorf("%s, want %s", out, c.want)
			}
		})
	}
}

// TestManifest: each document of the manifest is an object of the API, without a field that it does not have.
func TestManifest(t *testing.T) {
	f, err := os.Open("../../tools/metrics/kubernetes.yml")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	strict := serializer.NewCodecFactory(scheme.Scheme, serializer.EnableStrict).UniversalDeserializer()
	var kinds []string
	for docs := utilyaml.NewDocumentDecoder(f); ; {
		b := make([]byte, 1<<16)
		n, err := docs.Read(b)
		if err == io.EOF {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		_, kind, err := strict.Decode(b[:n], nil, nil)
		if err != nil {
			t.Fatalf("%v in\n%s", err, b[:n])
		}
		kinds = append(kinds, kind.String())
	}
	if got, want := strings.Join(kinds, "; "), "/v1, Kind=Service; apps/v1, Kind=DaemonSet"; got != want {
		t.Errorf("the manifest has %s, want %s", got, want)
	}
}
