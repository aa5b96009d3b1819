package nodefiles

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	resourceclient "k8s.io/client-go/kubernetes/typed/resource/v1"
	"k8s.io/dynamic-resource-allocation/resourceclaim"
)

// requestTimeout is the maximum duration of a request: the claims of other pods
// wait.
const requestTimeout = 10 * time.Second

var errNotAllocated = errors.New("no devices allocated yet")

// AdminClaims lists the claims with admin access of the node's pods, as lines
// NAMESPACE/NAME/DRIVER: the PodResources API does not show the access.
//
// A claim is read once for each pod, as by the kubelet: a pod gets a node after
// the allocation, which does not change while the pod uses the claim. A watch
// would send the claims of all nodes to each node.
type AdminClaims struct {
	Client resourceclient.ResourceV1Interface

	lines map[podClaim][]string // of known claims
}

// podClaim is a claim of a pod.
type podClaim struct {
	pod             types.UID
	namespace, name string
}

// Content returns the lines for pods, without claims that do not exist or are
// not allocated; none if a claim is unknown because the API server did not
// answer.
func (a *AdminClaims) Content(ctx context.Context, pods []any) (string, error) {
	var errs []error
	isUnknown := false
	lines, all := map[podClaim][]string{}, map[string]bool{}
	for _, claim := range claimsOf(pods) {
		known, ok := a.lines[claim]
		if !ok {
			var err error
			if known, err = a.read(ctx, claim); err != nil {
				errs = append(errs, fmt.Errorf("read claim %s/%s: %w", claim.namespace, claim.name, err))
				isUnknown = isUnknown || !errors.Is(err, errNotAllocated) && !apierrors.IsNotFound(err)
				continue
			}
		}
		lines[claim] = known
		for _, line := range known {
			all[line] = true
		}
	}
	a.lines = lines
	if isUnknown {
		return "", errors.Join(errs...)
	}
	return strings.Join(slices.Sorted(maps.Keys(all)), ""), errors.Join(errs...)
}

// claimsOf returns the claims of pods that have not ended.
func claimsOf(pods []any) (claims []podClaim) {
	for _, o := range pods {
		p := o.(*v1.Pod)
		if p.Status.Phase == v1.PodSucceeded || p.Status.Phase == v1.PodFailed {
			continue
		}
		for i := range p.Spec.ResourceClaims {
			name, _, err := resourceclaim.Name(p, &p.Spec.ResourceClaims[i])
			if err == nil && name != nil { // otherwise, the template's claim does not exist yet
				claims = append(claims, podClaim{p.UID, p.Namespace, *name})
			}
		}
	}
	return claims
}

// read returns lines with the drivers that allocated all their devices of a
// claim for admin access. Other devices of the claim would count as unallocated.
func (a *AdminClaims) read(ctx context.Context, c podClaim) (lines []string, err error) {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	claim, err := a.Client.ResourceClaims(c.namespace).Get(ctx, c.name, metav1.GetOptions{})
	if err != nil {
		return nil, err
	}
	if claim.Status.Allocation == nil {
		return nil, errNotAllocated
	}
	others := map[string]bool{} // drivers
	for _, r := range claim.Status.Allocation.Devices.Results {
		others[r.Driver] = others[r.Driver] || r.AdminAccess == nil || !*r.AdminAccess
	}
	for driver, has := range others {
		if !has {
			lines = append(lines, c.namespace+"/"+c.name+"/"+driver+"\n")
		}
	}
	return lines, nil
}
