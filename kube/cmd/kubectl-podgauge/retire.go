package main

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/podgauge/podgauge/internal/cli"
	"github.com/podgauge/podgauge/internal/config"
	"github.com/podgauge/podgauge/internal/device"
	"github.com/podgauge/podgauge/internal/text"
	"github.com/podgauge/podgauge/internal/web/api"
	"github.com/spf13/cobra"
	authv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/util/retry"
)

// retirementEdit is a command that changes the list of retired devices.
type retirementEdit struct {
	*client
	gpu        string
	reason, by string
}

func newRetireCommand(c *client) *cobra.Command {
	e := retirementEdit{client: c}
	command := e.command("retire NODE GPU --reason TEXT",
		"Take a GPU or MIG device out of service, in the list of all nodes",
		"  kubectl podgauge retire node-a 3 --reason 'fan is noisy, ticket 4711'", e.retire)
	command.Flags().StringVar(&e.reason, "reason", "", "why the device is retired, in one `line`; required")
	command.Flags().StringVar(&e.by, "by", "", "`name` of the operator (default your user name in the cluster)")
	return command
}

func newUnretireCommand(c *client) *cobra.Command {
	e := retirementEdit{client: c}
	return e.command("unretire NODE GPU", "Return a retired device to service, in the list of all nodes",
		"  kubectl podgauge unretire node-a 3", e.unretire)
}

func (e *retirementEdit) command(use, short, example string,
	run func(context.Context, *corev1.Pod) (string, error),
) *cobra.Command {
	command := newNodeCommand(e.client, use, short, example, cobra.ExactArgs(2),
		func(ctx context.Context, p *corev1.Pod, args []string) error {
			e.gpu = args[0]
			done, err := run(ctx, p)
			if err == nil {
				fmt.Fprintln(e.streams.Out, text.Printable(done))
			}
			return err
		})
	command.Long += "\n\nGPU is an index, GPU:MIG from status, a UUID or a serial number. The list is the " +
		"ConfigMap that podgauge's\npods mount. Nodes follow it within about a minute."
	return command
}

func (e *retirementEdit) retire(ctx context.Context, p *corev1.Pod) (string, error) {
	d, err := e.askDevice(ctx, p)
	// A node that is down, or whose podgauge fails, cannot say which device it has.
	if entry := (config.Retirement{Device: e.gpu, Reason: "x"}); err != nil && d == nil && entry.Check() == nil {
		d, err = &api.DeviceJSON{ID: device.ID(e.gpu)}, nil
	}
	if err != nil {
		return "", err
	}
	if e.by == "" {
		e.by = e.username(ctx)
	}
	entry := config.Retirement{
		Device: string(d.ID), Reason: e.reason, By: e.by, Date: time.Now().UTC().Format(time.RFC3339),
	}
	if err := entry.Check(); err != nil {
		return "", err
	}
	list, err := e.editList(ctx, p, func(all *config.Retired) error {
		if i := slices.IndexFunc(all.Retired, func(r config.Retirement) bool { return isName(r.Device, d) }); i >= 0 {
			return fmt.Errorf("%s is already retired: %s", d.ID, all.Retired[i].Reason)
		}
		all.Retired = append(all.Retired, entry)
		return nil
	})
	if err != nil {
		return "", err
	}
	done := fmt.Sprintf("%s is retired in %s; %s follows within about a minute", d.ID, list, p.Spec.NodeName)
	if len(d.Owners) > 0 {
		done += "; allocated until the pods end"
	}
	return done, nil
}

func (e *retirementEdit) unretire(ctx context.Context, p *corev1.Pod) (string, error) {
	d, err := e.askDevice(ctx, p)
	if err != nil { // the GPU or the node may be gone
		d = &api.DeviceJSON{ID: device.ID(e.gpu)}
	}
	list, editErr := e.editList(ctx, p, func(all *config.Retired) error {
		before := len(all.Retired)
		all.Retired = slices.DeleteFunc(all.Retired, func(r config.Retirement) bool { return isName(r.Device, d) })
		switch {
		case len(all.Retired) < before:
			return nil
		case err != nil:
			return err
		case d.Reason == device.ReasonRetired:
			return fmt.Errorf("%s is not in the list: a command on the node retired it, or its GPU is retired; "+
				"see kubectl podgauge retired, and kubectl podgauge trust", d.ID)
		}
		return fmt.Errorf("%s is not retired", d.ID)
	})
	return fmt.Sprintf("%s is no longer retired in %s; %s follows within about a minute", d.ID, list, p.Spec.NodeName),
		editErr
}

// askDevice returns the device that the user names; nil without an answer of
// the node.
func (e *retirementEdit) askDevice(ctx context.Context, p *corev1.Pod) (*api.DeviceJSON, error) {
	ctx, cancel := context.WithTimeout(ctx, e.timeout)
	defer cancel()
	devices, err := get[api.DevicesResponse](ctx, e.client, p, "status", nil)
	if err != nil {
		return nil, fmt.Errorf("list devices of %s: %w", p.Spec.NodeName, err)
	}
	return findDevice(p.Spec.NodeName, e.gpu, devices.Devices)
}

// findDevice returns the only device with a name: a gone GPU may have the index
// of another, and the GPUs of a board have one serial number.
func findDevice(node, name string, devices []api.DeviceJSON) (*api.DeviceJSON, error) {
	found, known, named := &api.DeviceJSON{}, []string{}, []string{}
	for i := range devices {
		d := &devices[i]
		number, id := cli.DeviceNumber(d), string(d.ID)
		known = append(known, fmt.Sprintf("%s (%s)", number, id))
		if d.Gone {
			id += " (gone)"
		}
		if isName(name, d) || name == number {
			found, named = d, append(named, id)
		}
	}
	switch len(named) {
	case 0:
		return found, fmt.Errorf("%s has no device %q: expected one of %s", node, name,
			cmp.Or(strings.Join(known, ", "), "none: the driver has listed no device"))
	case 1:
		return found, nil
	}
	return &api.DeviceJSON{}, fmt.Errorf("%q names %s: use the UUID", name, strings.Join(named, " and "))
}

// username returns the user's name as the API server knows it; empty: unknown.
func (c *client) username(ctx context.Context) string {
	ctx, cancel := context.WithTimeout(ctx, c.timeout)
	defer cancel()
	reviews := c.kube.AuthenticationV1().SelfSubjectReviews()
	review, err := reviews.Create(ctx, &authv1.SelfSubjectReview{}, metav1.CreateOptions{})
	if err != nil {
		return ""
	}
	return review.Status.UserInfo.Username
}

// editList changes the list of retired devices, and returns its name. Concurrent
// changes are not lost: the API server rejects an outdated update.
func (c *client) editList(ctx context.Context, p *corev1.Pod, edit func(*config.Retired) error) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, c.timeout)
	defer cancel()
	key, err := listOf(p)
	if err != nil {
		return "", err
	}
	maps := c.kube.CoreV1().ConfigMaps(key.Namespace)
	changed := func(err error) bool { return apierrors.IsConflict(err) || apierrors.IsAlreadyExists(err) }
	err = retry.OnError(retry.DefaultRetry, changed, func() error {
		list, err := maps.Get(ctx, key.Name, metav1.GetOptions{})
		missing := apierrors.IsNotFound(err)
		if missing {
			list = &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: key.Name, Namespace: key.Namespace}}
		} else if err != nil {
			return err
		}
		all, err := parseList(key, list)
		if err != nil {
			return err
		}
		if err := edit(&all); err != nil {
			return err
		}
		if list.Data == nil {
			list.Data = map[string]string{}
		}
		list.Data[config.RetiredFile] = all.String()
		if missing {
			_, err = maps.Create(ctx, list, metav1.CreateOptions{})
		} else {
			_, err = maps.Update(ctx, list, metav1.UpdateOptions{})
		}
		return err
	})
	return "ConfigMap " + key.String(), err
}
