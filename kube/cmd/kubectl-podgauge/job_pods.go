package main

import (
	"context"
	"encoding/json"
	"fmt"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/podgauge/podgauge/internal/allocation"
	"github.com/podgauge/podgauge/internal/incident"
	"github.com/podgauge/podgauge/internal/text"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/selection"
)

// jobPods are the pods of a job by name, or those with labels.
type jobPods struct {
	namespace, name string
	selector        labels.Selector // nil: by name
	live            []corev1.Pod    // those that the API server has
}

// String returns the name or the selector.
func (j *jobPods) String() string {
	if j.selector != nil {
		return j.selector.String()
	}
	return j.name
}

// jobPaths are the objects whose pods have a JobLabel with the object's name.
var jobPaths = [...]string{
	"/apis/batch/v1/namespaces/%s/jobs/%s",
	"/apis/jobset.x-k8s.io/v1alpha2/namespaces/%s/jobsets/%s",
	"/apis/leaderworkerset.x-k8s.io/v1/namespaces/%s/leaderworkersets/%s",
	"/apis/kubeflow.org/v2beta1/namespaces/%s/mpijobs/%s",
	"/apis/kubeflow.org/v1/namespaces/%s/pytorchjobs/%s",
	"/apis/ray.io/v1/namespaces/%s/rayjobs/%s",
	"/apis/ray.io/v1/namespaces/%s/rayclusters/%s",
}

// created returns the creation time of the job, to leave out earlier jobs of
// the same name. Zero: the job is gone, the user may not read it, or there is a
// selector. A RayJob and its RayCluster and Job have almost the same age.
func (j *jobPods) created(ctx context.Context, c *client) (first time.Time) {
	if j.selector != nil {
		return first
	}
	ctx, cancel := context.WithTimeout(ctx, c.timeout)
	defer cancel()
	for _, path := range jobPaths {
		var object metav1.PartialObjectMetadata
		body, err := c.kube.CoreV1().RESTClient().Get().
			AbsPath(fmt.Sprintf(path, url.PathEscape(j.namespace), url.PathEscape(j.name))).DoRaw(ctx)
		if err != nil || json.Unmarshal(body, &object) != nil {
			continue
		}
		if at := object.CreationTimestamp.Time; !at.IsZero() && (first.IsZero() || at.Before(first)) {
			first = at
		}
	}
	return first
}

// list lists the pods that the API server has.
func (j *jobPods) list(ctx context.Context, c *client) error {
	ctx, cancel := context.WithTimeout(ctx, c.timeout)
	defer cancel()
	selectors := []string{}
	if j.selector != nil {
		selectors = append(selectors, j.selector.String())
	} else {
		for _, label := range allocation.JobLabels {
			if label == allocation.RayClusterLabel { // the name may have a suffix
				selectors = append(selectors, label)
			} else if set, err := labels.ValidatedSelectorFromSet(labels.Set{label: j.name}); err == nil {
				selectors = append(selectors, set.String())
			}
		}
	}
	j.live = nil // a watch lists again
	for _, selector := range selectors {
		list, err := c.kube.CoreV1().Pods(j.namespace).List(ctx, metav1.ListOptions{LabelSelector: selector})
		if err != nil {
			return fmt.Errorf("list pods of %s: %w", j, err)
		}
		for _, p := range list.Items {
			w := &allocation.Workload{Labels: p.Labels}
			known := slices.ContainsFunc(j.live, func(o corev1.Pod) bool { return o.Name == p.Name })
			if !known && j.hasWorkload(w) {
				j.live = append(j.live, p)
			}
		}
	}
	return nil
}

// hasWorkload reports whether a pod with a workload belongs to the job.
func (j *jobPods) hasWorkload(w *allocation.Workload) bool {
	if w == nil {
		return false
	}
	if j.selector != nil {
		return j.selector.Matches(labels.Set(w.Labels))
	}
	for _, label := range allocation.JobLabels {
		value := w.Labels[label]
		if value == j.name || label == allocation.RayClusterLabel && j.isRayCluster(value) {
			return true
		}
	}
	return w.Controller.Name == j.name
}

// rayClusterSuffix is the generated part of the name of a RayJob's RayCluster
// (GenerateRayClusterName in ray-operator/controllers/ray/utils of kuberay).
var rayClusterSuffix = regexp.MustCompile(`^-(raycluster-)?[a-z0-9]{5}$`)

func (j *jobPods) isRayCluster(value string) bool {
	suffix, ok := strings.CutPrefix(value, j.name)
	return ok && rayClusterSuffix.MatchString(suffix)
}

func (j *jobPods) hasOwner(o allocation.Owner) bool {
	return o.Namespace == j.namespace && slices.ContainsFunc(j.live, func(p corev1.Pod) bool { return p.Name == o.Pod })
}

func (j *jobPods) hasAffected(i *incident.Incident, c *incident.AffectedContainer) bool {
	return c.Namespace == j.namespace && (j.hasOwner(c.Owner) || j.hasWorkload(c.Workload)) ||
		j.selector == nil && slices.Contains(i.HPCJobs, j.name) // a Slurm job
}

// ends returns how containers of pods that the API server has ended, without
// those that succeeded.
func (j *jobPods) ends() (records []podRecord) {
	for i := range j.live {
		p := &j.live[i]
		for _, c := range slices.Concat(p.Status.InitContainerStatuses, p.Status.ContainerStatuses) {
			end := c.State.Terminated
			if end == nil {
				end = c.LastTerminationState.Terminated
			}
			if end == nil || end.ExitCode == 0 {
				continue
			}
			record := podRecord{
				Node: p.Spec.NodeName, Source: "pod", faultAt: end.FinishedAt.Time,
				Ended: fmt.Sprintf("%s, %s, exit %d", p.Status.Phase, end.Reason, end.ExitCode),
			}
			record.setOwner(allocation.Owner{Namespace: p.Namespace, Pod: p.Name, Container: c.Name})
			records = append(records, record)
		}
	}
	return records
}

// matchers returns PromQL's matchers of the pods' series: by controller, for
// kube_pod_owner, and by each label, for families with label_* and hpc_job.
func (j *jobPods) matchers() (owner string, byLabel []string) {
	namespace := fmt.Sprintf("namespace=%q", j.namespace)
	if j.selector == nil {
		byLabel = append(byLabel, fmt.Sprintf("%s,hpc_job=%q", namespace, j.name))
		for _, label := range allocation.JobLabels {
			value := regexp.QuoteMeta(j.name)
			if label == allocation.RayClusterLabel {
				value += "(" + strings.Trim(rayClusterSuffix.String(), "^$") + ")?"
			}
			byLabel = append(byLabel, fmt.Sprintf("%s,label_%s=~%q", namespace, text.SnakeCase(label), value))
		}
		return fmt.Sprintf("%s,owner_name=%q", namespace, j.name), byLabel
	}
	matchers := []string{namespace}
	requirements, _ := j.selector.Requirements()
	for _, r := range requirements {
		operator, value := "=~", anyOf(r.Values().List()) // empty: the label does not exist
		switch r.Operator() {
		case selection.NotIn, selection.NotEquals:
			operator = "!~"
		case selection.Exists, selection.GreaterThan, selection.LessThan:
			value = ".+"
		}
		matchers = append(matchers, fmt.Sprintf("label_%s%s%q", text.SnakeCase(r.Key()), operator, value))
	}
	return "", []string{strings.Join(matchers, ",")}
}

// anyOf returns a regular expression of texts.
func anyOf(texts []string) string {
	quoted := make([]string, len(texts))
	for i, text := range texts {
		quoted[i] = regexp.QuoteMeta(text)
	}
	return strings.Join(quoted, "|")
}
