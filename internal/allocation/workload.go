package allocation

import "maps"

// JobLabels are the labels of pods that name the pod's job. Incidents keep
// them, so that the pods of a job are known after their end.
//
//   - Job: https://kubernetes.io/docs/reference/labels-annotations-taints/#batchkubernetesio-job-name
//   - JobSet: JobSetNameKey in api/jobset/v1alpha2 of kubernetes-sigs/jobset
//   - LeaderWorkerSet: SetNameLabelKey in api/leaderworkerset/v1 of kubernetes-sigs/lws
//   - MPIJob and the jobs of Kubeflow's training operator: JobNameLabel in
//     pkg/apis/kubeflow/v2beta1 of kubeflow/mpi-operator
//   - RayCluster: RayClusterLabelKey in ray-operator/controllers/ray/utils of
//     ray-project/kuberay; a RayJob's cluster has the name of the RayJob and a
//     generated suffix
//   - Slurm: LabelPlaceholderJobId in SlinkyProject/slurm-bridge
var JobLabels = [...]string{
	"batch.kubernetes.io/job-name",
	"jobset.sigs.k8s.io/jobset-name",
	"leaderworkerset.sigs.k8s.io/name",
	"training.kubeflow.org/job-name",
	RayClusterLabel,
	"ray.io/originated-from-cr-name",
	SlurmJobLabel,
}

const (
	// RayClusterLabel has the name of a pod's RayCluster.
	RayClusterLabel = "ray.io/cluster"
	// SlurmJobLabel has the id of the Slurm job of a pod, by Slinky's
	// slurm-bridge.
	SlurmJobLabel = "scheduler.slinky.slurm.net/slurm-jobid"
)

// Workload is what a pod is part of. It is immutable.
type Workload struct {
	Controller Controller `json:"controller,omitzero"`
	// Labels are the pod's JobLabels, and those on the allowlist.
	Labels map[string]string `json:"labels,omitempty"`
}

// Equal reports whether two workloads, which may be nil, have the same content.
func (w *Workload) Equal(other *Workload) bool {
	if w == nil || other == nil {
		return w == other
	}
	return w.Controller == other.Controller && maps.Equal(w.Labels, other.Labels)
}

// Label returns the value of a label; empty: none.
func (w *Workload) Label(name string) string {
	if w == nil {
		return ""
	}
	return w.Labels[name]
}

// Controller is the object that controls a pod: Job/train-1. Kinds have no
// group.
type Controller struct {
	Kind string `json:"kind"`
	Name string `json:"name"`
}
