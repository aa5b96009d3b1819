package main

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/podgauge/podgauge/internal/cli"
	"github.com/podgauge/podgauge/internal/config"
	"github.com/podgauge/podgauge/internal/device"
	"github.com/podgauge/podgauge/internal/web/api"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// retiredVolume is the volume of podgauge's pods with the ConfigMap of retired
// devices.
const retiredVolume = "retired"

// retiredDevice is a line of the report of retired devices.
type retiredDevice struct {
	Node   string    `json:"node,omitempty"` // empty: no node that answers has the device
	GPU    string    `json:"gpu,omitempty"`  // as in status
	Device string    `json:"device"`         // UUID, or the serial number in the list
	Reason string    `json:"reason"`
	By     string    `json:"by,omitempty"`
	Since  time.Time `json:"since,omitzero"`
	// Source is the list, or "node" after a command on the node.
	Source string `json:"source"`
	// Pending is set if the node has not applied the list yet.
	Pending     bool               `json:"pending,omitempty"`
	MaskedFault device.MaskedFault `json:"masked_fault,omitzero"`

	listed string // UUID or serial number in the list; empty: a command on the node
}

// listOf returns the ConfigMap of retired devices that a pod mounts.
func listOf(p *corev1.Pod) (types.NamespacedName, error) {
	for _, v := range p.Spec.Volumes {
		if v.Name == retiredVolume && v.ConfigMap != nil {
			return types.NamespacedName{Namespace: p.Namespace, Name: v.ConfigMap.Name}, nil
		}
	}
	return types.NamespacedName{}, fmt.Errorf("pod %s/%s mounts no ConfigMap as volume %s: "+
		"set retired.enabled in the chart", p.Namespace, p.Name, retiredVolume)
}

// reportRetired returns the devices in the lists of retired devices, and those
// that a command on their node has retired.
func (c *client) reportRetired(ctx context.Context) (result, error) {
	answers, err := askDevices(ctx, c)
	if err != nil {
		return result{}, err
	}
	rows, err := c.listedDevices(ctx)
	if err != nil {
		return result{}, err
	}
	for node, response := range responses(answers) {
		for i := range response.Devices {
			d := &response.Devices[i]
			ofGPU := func(r retiredDevice) bool { return r.Node == node && r.Device == string(d.GPU) }
			listed := slices.IndexFunc(rows, func(r retiredDevice) bool { return isName(r.listed, d) })
			switch {
			case listed >= 0:
				if r := rows[listed]; r.Node != "" && r.Device != string(d.ID) { // another GPU of the board
					listed, rows = len(rows), append(rows, r)
				}
				r := &rows[listed]
				r.Node, r.GPU, r.MaskedFault, r.Device = node, cli.DeviceNumber(d), d.MaskedFault, string(d.ID)
				r.Pending = d.Reason != device.ReasonRetired
				if r.Since.IsZero() {
					r.Since = d.Since
				}
			case d.Reason == device.ReasonRetired && !slices.ContainsFunc(rows, ofGPU):
				rows = append(rows, retiredDevice{
					Node: node, GPU: cli.DeviceNumber(d), Device: string(d.ID), Reason: d.Note, Since: d.Since,
					Source: "node", MaskedFault: d.MaskedFault,
				})
			}
		}
	}
	slices.SortStableFunc(rows, func(a, b retiredDevice) int { return a.Since.Compare(b.Since) })
	return result{
		document: map[string]any{"retired": rows}, failed: failedNodes(answers), rows: retiredRows(rows), wide: 1,
	}, nil
}

// listedDevices returns the content of the ConfigMaps that podgauge's pods
// mount: usually one.
func (c *client) listedDevices(ctx context.Context) ([]retiredDevice, error) {
	ctx, cancel := context.WithTimeout(ctx, c.timeout)
	defer cancel()
	pods, err := c.pods(ctx)
	if err != nil {
		return nil, err
	}
	devices, read := []retiredDevice{}, map[types.NamespacedName]bool{}
	for i := range pods {
		key, err := listOf(&pods[i])
		if err != nil || read[key] { // commands on the node need no list
			continue
		}
		read[key] = true
		list, err := c.kube.CoreV1().ConfigMaps(key.Namespace).Get(ctx, key.Name, metav1.GetOptions{})
		if err != nil && !apierrors.IsNotFound(err) {
			return nil, err
		}
		all, err := parseList(key, list)
		if err != nil {
			return nil, err
		}
		for _, r := range all.Retired {
			devices = append(devices, retiredDevice{
				Device: r.Device, Reason: r.Reason, By: r.By, Since: r.Since(), Source: key.String(),
				listed: r.Device,
			})
		}
	}
	return devices, nil
}

// parseList returns the retirements in a ConfigMap.
func parseList(key types.NamespacedName, list *corev1.ConfigMap) (config.Retired, error) {
	all, err := config.ParseRetired(list.Data[config.RetiredFile])
	if err != nil {
		err = fmt.Errorf("%s of ConfigMap %s: %w", config.RetiredFile, key, err)
	}
	return all, err
}

// isName reports whether a name is the UUID of a device, or a GPU's serial number.
func isName(name string, d *api.DeviceJSON) bool {
	isSerial := name != "" && string(d.ID) == string(d.GPU) && strings.EqualFold(name, d.InfoLabels["serial"])
	return isSerial || strings.EqualFold(name, string(d.ID))
}

func retiredRows(devices []retiredDevice) [][]string {
	rows := [][]string{{"AGE", "NODE", "GPU", "REASON", "BY", "FAULT BEHIND", "DEVICE", "SOURCE"}}
	for _, r := range devices {
		fault := r.MaskedFault.String()
		switch {
		case r.Node == "":
			fault = "unknown: no node has the device"
		case r.Pending:
			fault = "not applied yet"
		}
		rows = append(rows, []string{
			cli.Ago(time.Now(), r.Since), r.Node, r.GPU, r.Reason, r.By, fault, r.Device, r.Source,
		})
	}
	return rows
}
