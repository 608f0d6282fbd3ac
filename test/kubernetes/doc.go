// Package kubernetes tests "verbs mesh run --via 'kubectl exec -i {host} --'" with kubectl itself, and
// the manifest for Kubernetes with the API's own types. The server that kubectl talks to is made of
// the kubelet's parts: it knows pods, whose containers are processes of this machine, and runs
// commands in them. There is no cluster, so nothing here schedules pods or pulls images.
//
// It is a module of its own for its dependencies.
package kubernetes
