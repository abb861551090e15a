package deploy

import (
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	monitoring "github.com/prometheus-operator/prometheus-operator/pkg/apis/monitoring/v1"
	apps "k8s.io/api/apps/v1"
	core "k8s.io/api/core/v1"
	policy "k8s.io/api/policy/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
)

// manifests are what the files of kubernetes/ describe.
type manifests struct {
	deployment *apps.Deployment
	service    *core.Service
	config     *core.ConfigMap
	secret     *core.Secret
	monitor    *monitoring.PodMonitor
	budget     *policy.PodDisruptionBudget
}

// readManifests decodes each file into its type; a field that Kubernetes doesn't know is an error.
func readManifests(t *testing.T) (m manifests) {
	t.Helper()
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{core.AddToScheme, apps.AddToScheme, policy.AddToScheme, monitoring.AddToScheme} {
		if err := add(scheme); err != nil {
			t.Fatal(err)
		}
	}
	decoder := serializer.NewCodecFactory(scheme, serializer.EnableStrict).UniversalDeserializer()
	files, err := filepath.Glob("kubernetes/*")
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		object, kind, err := decoder.Decode(text, nil, nil)
		if err != nil {
			t.Fatalf("%s: %v", file, err)
		}
		if want := strings.ToLower(kind.Kind) + ".yaml"; filepath.Base(file) != want {
			t.Errorf("%s has a %s, want it in %s", file, kind.Kind, want)
		}
		switch o := object.(type) {
		case *apps.Deployment:
			m.deployment = o
		case *core.Service:
			m.service = o
		case *core.ConfigMap:
			m.config = o
		case *core.Secret:
			m.secret = o
		case *monitoring.PodMonitor:
			m.monitor = o
		case *policy.PodDisruptionBudget:
			m.budget = o
		default:
			t.Errorf("%s has a %s, which these tests know nothing of", file, kind.Kind)
		}
	}
	v := reflect.ValueOf(m)
	for i := range v.NumField() {
		if v.Field(i).IsNil() {
			t.Fatalf("kubernetes/ has no %s", v.Type().Field(i).Name)
		}
	}
	return m
}

// What refers to something else finds it.
func TestManifestsFitTogether(t *testing.T) {
	m := readManifests(t)
	pod := m.deployment.Spec.Template
	for what, selector := range map[string]map[string]string{
		"Deployment": m.deployment.Spec.Selector.MatchLabels, "Service": m.service.Spec.Selector,
		"PodMonitor": m.monitor.Spec.Selector.MatchLabels, "PodDisruptionBudget": m.budget.Spec.Selector.MatchLabels,
		"topologySpreadConstraints": pod.Spec.TopologySpreadConstraints[0].LabelSelector.MatchLabels,
	} {
		if len(selector) == 0 || !labels.SelectorFromSet(selector).Matches(labels.Set(pod.Labels)) {
			t.Errorf("the %s selects %v, and the pods are %v", what, selector, pod.Labels)
		}
	}
	c := pod.Spec.Containers[0]
	ports := map[string]int32{}
	for _, p := range c.Ports {
		ports[p.Name] = p.ContainerPort
	}
	for what, name := range map[string]string{
		"Service": m.service.Spec.Ports[0].TargetPort.StrVal, "PodMonitor": *m.monitor.Spec.PodMetricsEndpoints[0].Port,
		"readinessProbe": c.ReadinessProbe.HTTPGet.Port.StrVal, "livenessProbe": c.LivenessProbe.TCPSocket.Port.StrVal,
	} {
		if ports[name] == 0 {
			t.Errorf("the %s goes to port %q, and the pods have %v", what, name, ports)
		}
	}
	volumes := map[string]core.VolumeSource{}
	for _, v := range pod.Spec.Volumes {
		volumes[v.Name] = v.VolumeSource
	}
	at := map[string]core.VolumeSource{}
	for _, mount := range c.VolumeMounts {
		at[mount.MountPath] = volumes[mount.Name]
	}
	if v := at["/etc/caddy"].ConfigMap; v == nil || v.Name != m.config.Name {
		t.Errorf("/etc/caddy is %v, want the ConfigMap %s", v, m.config.Name)
	}
	if v := at["/run/secrets"].Secret; v == nil || v.SecretName != m.secret.Name || m.secret.StringData["redis_password"] == "" {
		t.Errorf("/run/secrets is %v, want the Secret %s", v, m.secret.Name)
	}
	if at["/data"].EmptyDir == nil {
		t.Error("/data can't be written")
	}
}

// The pods are started as compose.yaml starts the image, with the same Caddyfile.
func TestManifestsGoByTheImage(t *testing.T) {
	m, i := readManifests(t), readImage(t)
	text, err := os.ReadFile("node.Caddyfile")
	if err != nil {
		t.Fatal(err)
	}
	if m.config.Data["Caddyfile"] != string(text) {
		t.Errorf("the ConfigMap has another Caddyfile than node.Caddyfile:\n%s", m.config.Data["Caddyfile"])
	}
	pod := m.deployment.Spec.Template.Spec
	c := pod.Containers[0]
	if len(c.Command) > 0 || !slices.Equal(c.Args, i.command) {
		t.Errorf("the pods run %q %q, want %q", c.Command, c.Args, i.command)
	}
	var ports []string
	for _, p := range c.Ports {
		ports = append(ports, strconv.Itoa(int(p.ContainerPort)))
	}
	if !slices.Equal(ports, i.ports) {
		t.Errorf("the pods have the ports %q, and the image %q", ports, i.ports)
	}
	if s := pod.SecurityContext; *s.RunAsUser != 65534 || !*s.RunAsNonRoot || *s.FSGroup != 65534 || !*c.SecurityContext.ReadOnlyRootFilesystem || i.user != "65534:65534" {
		t.Errorf("the pods run as %v, %v, and the image as %s", s, c.SecurityContext, i.user)
	}
	known := map[string]bool{}
	for _, v := range regexp.MustCompile(`\{\$([A-Z_]+)`).FindAllStringSubmatch(string(text), -1) {
		known[v[1]] = true
	}
	set := map[string]bool{}
	for _, e := range c.Env {
		set[e.Name] = true
	}
	for name := range readProject(t).Services["node1"].Environment {
		set[name] = true
	}
	for name := range maps.Keys(set) {
		if !known[name] {
			t.Errorf("%s is set, and node.Caddyfile doesn't read it", name)
		}
	}
}

// Whoever ends a node gives it the time that it takes to drain: what is waited for before SIGTERM
// and after it, Caddy's grace period, and two seconds to send the last counts.
func TestNodesHaveTimeToDrain(t *testing.T) {
	text, err := os.ReadFile("node.Caddyfile")
	if err != nil {
		t.Fatal(err)
	}
	grace, err := time.ParseDuration(regexp.MustCompile(`(?m)^\tgrace_period (\S+)$`).FindStringSubmatch(string(text))[1])
	if err != nil {
		t.Fatal(err)
	}
	const counts, spare = 2 * time.Second, time.Second
	m, node := readManifests(t), readProject(t).Services["node1"]
	pod := m.deployment.Spec.Template.Spec
	preStop := time.Duration(pod.Containers[0].Lifecycle.PreStop.Sleep.Seconds) * time.Second
	if has, want := time.Duration(*pod.TerminationGracePeriodSeconds)*time.Second, preStop+grace+counts+spare; has < want {
		t.Errorf("a pod has %s to end, want %s", has, want)
	}
	delay, err := time.ParseDuration(*node.Environment["SHUTDOWN_DELAY"])
	if err != nil {
		t.Fatal(err)
	}
	if has, want := time.Duration(*node.StopGracePeriod), delay+grace+counts+spare; has < want {
		t.Errorf("a container has %s to end, want %s", has, want)
	}
	rolling, budget := m.deployment.Spec.Strategy.RollingUpdate, m.budget.Spec.MaxUnavailable
	if *m.deployment.Spec.Replicas < 2 || rolling.MaxUnavailable.IntVal != 0 || budget.IntVal != 1 {
		t.Errorf("%d replicas, %v and %v: want one that serves at any time, and one that may be evicted", *m.deployment.Spec.Replicas, rolling, budget)
	}
}
