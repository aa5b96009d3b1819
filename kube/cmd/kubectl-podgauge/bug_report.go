package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/spf13/pflag"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
)

// maxBugReportTime is the lifetime of the debug pod: nvidia-bug-report takes
// minutes, and a kubectl that is killed cannot delete the pod.
const maxBugReportTime = 15 * time.Minute

// bugReportScript prints the report. nvidia-bug-report.sh appends .gz to the
// name of its file.
const bugReportScript = `f=$(mktemp -u /tmp/podgauge-XXXXXX).log
nvidia-bug-report.sh --output-file "$f" >&2 && cat "$f.gz"
s=$?; rm -f "$f.gz"; exit $s`

// bugReport runs nvidia-bug-report.sh in a privileged pod on a node.
type bugReport struct {
	enabled           bool
	image, driverRoot string
}

func (r *bugReport) addFlags(f *pflag.FlagSet) {
	f.BoolVar(&r.enabled, "bug-report", false,
		"add nvidia-bug-report, which takes minutes, from a privileged pod on the node that is deleted afterwards")
	f.StringVar(&r.image, "image", "", "`image` of the privileged pod, with chroot and sleep: busybox")
	f.StringVar(&r.driverRoot, "driver-root", "/",
		"`folder` of the driver on the node: /run/nvidia/driver for the driver container of the GPU operator")
}

// run returns the report of a node. The pod is deleted in any case, also after
// an interrupt.
func (r *bugReport) run(ctx context.Context, c *client, podgauge *corev1.Pod) (report []byte, err error) {
	ctx, cancel := context.WithTimeout(ctx, maxBugReportTime)
	defer cancel()
	pods := c.kube.CoreV1().Pods(podgauge.Namespace)
	p, err := pods.Create(ctx, r.pod(podgauge.Spec.NodeName), metav1.CreateOptions{})
	if err != nil {
		return nil, fmt.Errorf("create debug pod: %w", err)
	}
	defer func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
		defer cancel()
		deleteErr := pods.Delete(ctx, p.Name, metav1.DeleteOptions{GracePeriodSeconds: new(int64(0))})
		if deleteErr != nil {
			err = errors.Join(err, fmt.Errorf("delete debug pod: %w", deleteErr))
		}
	}()
	state := "" // of the pod
	err = wait.PollUntilContextTimeout(ctx, time.Second, 2*time.Minute, true, func(ctx context.Context) (bool, error) {
		newest, err := pods.Get(ctx, p.Name, metav1.GetOptions{})
		state = string(newest.Status.Phase)
		for _, c := range newest.Status.ContainerStatuses {
			if c.State.Waiting != nil {
				state = c.State.Waiting.Reason
			}
		}
		return newest.Status.Phase != "" && newest.Status.Phase != corev1.PodPending, err
	})
	if err != nil {
		return nil, fmt.Errorf("start debug pod: pod is %s: %w", state, err)
	}
	return c.runInPod(ctx, p, []string{"chroot", "/driver", "sh", "-c", bugReportScript})
}

func (r *bugReport) pod(node string) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{GenerateName: "podgauge-bug-report-"},
		Spec: corev1.PodSpec{
			NodeName: node, HostPID: true, RestartPolicy: corev1.RestartPolicyNever,
			ActiveDeadlineSeconds:        new(int64(maxBugReportTime / time.Second)),
			AutomountServiceAccountToken: new(false),
			Tolerations:                  []corev1.Toleration{{Operator: corev1.TolerationOpExists}},
			Containers: []corev1.Container{{
				Name: "bug-report", Image: r.image,
				Command:         []string{"sleep", fmt.Sprint(int(maxBugReportTime / time.Second))},
				SecurityContext: &corev1.SecurityContext{Privileged: new(true), RunAsUser: new(int64(0))},
				VolumeMounts:    []corev1.VolumeMount{{Name: "driver", MountPath: "/driver"}},
			}},
			Volumes: []corev1.Volume{{Name: "driver", VolumeSource: corev1.VolumeSource{
				HostPath: &corev1.HostPathVolumeSource{Path: r.driverRoot},
			}}},
		},
	}
}
