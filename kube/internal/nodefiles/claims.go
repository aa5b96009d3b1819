package nodefiles

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/podgauge/podgauge/kube/internal/source"
	v1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/dynamic"
)

// requestTimeout is the maximum duration of a request: the claims of other pods
// wait.
const requestTimeout = 10 * time.Second

// claimVersions are the versions of resource.k8s.io whose claims show
// adminAccess in the same fields of the status, newest first.
var claimVersions = [...]string{"v1", "v1beta2", "v1beta1"}

// ClaimsFile lists the claims with admin access of the node's pods, as lines
// NAMESPACE/NAME/DRIVER: the PodResources API does not show the access.
//
// A claim is read once for each pod, as by the kubelet: a pod gets a node after
// the allocation, which does not change while the pod uses the claim. A watch
// would send the claims of all nodes to each node.
type ClaimsFile struct {
	file[*v1.Pod]

	client    dynamic.Interface
	discovery discovery.DiscoveryInterfaceWithContext
	version   string // of claimVersions; empty before the first claim
	drivers   map[podClaim][]string
}

// podClaim is a claim of a pod.
type podClaim struct {
	pod             types.UID
	namespace, name string
}

// NewClaimsFile returns a file with the claims of pods.
func NewClaimsFile(
	path string, pods *source.Source[*v1.Pod], client dynamic.Interface, versions discovery.DiscoveryInterface,
	log *slog.Logger,
) (*ClaimsFile, error) {
	f, err := newFile(path, pods, log)
	return &ClaimsFile{
		file: f, client: client, discovery: discovery.ToDiscoveryInterfaceWithContext(versions),
		drivers: map[podClaim][]string{},
	}, err
}

// Load updates the file once. After an error, the file may miss claims.
func (f *ClaimsFile) Load(ctx context.Context) error {
	err := f.wait(ctx)
	if err == nil {
		err = f.update(ctx)
	}
	return err
}

// Run follows the claims until ctx is done.
func (f *ClaimsFile) Run(ctx context.Context) error { return f.run(ctx, f.update) }

// update writes the known claims also after an error of others.
func (f *ClaimsFile) update(ctx context.Context) error {
	var errs []error
	used, lines := map[podClaim][]string{}, map[string]bool{}
	for _, claim := range f.claims() {
		drivers, known := f.drivers[claim]
		if !known {
			var err error
			if drivers, err = f.adminDrivers(ctx, claim); err != nil {
				errs = append(errs, fmt.Errorf("read claim %s/%s: %w", claim.namespace, claim.name, err))
				continue
			}
		}
		used[claim] = drivers
		for _, driver := range drivers {
			lines[claim.namespace+"/"+claim.name+"/"+driver+"\n"] = true
		}
	}
	f.drivers = used
	errs = append(errs, f.store(strings.Join(slices.Sorted(maps.Keys(lines)), "")))
	return errors.Join(errs...)
}

// claims returns the claims of pods that have not ended.
func (f *ClaimsFile) claims() (claims []podClaim) {
	for _, p := range f.objects.Objects() {
		if p.Status.Phase == v1.PodSucceeded || p.Status.Phase == v1.PodFailed {
			continue
		}
		for _, c := range p.Spec.ResourceClaims {
			if c.ResourceClaimName != nil {
				claims = append(claims, podClaim{p.UID, p.Namespace, *c.ResourceClaimName})
			}
		}
		for _, c := range p.Status.ResourceClaimStatuses { // of templates
			if c.ResourceClaimName != nil {
				claims = append(claims, podClaim{p.UID, p.Namespace, *c.ResourceClaimName})
			}
		}
	}
	return claims
}

// adminDrivers returns the drivers that allocated all their devices of a claim
// for admin access. Other devices of the claim would count as unallocated.
func (f *ClaimsFile) adminDrivers(ctx context.Context, c podClaim) (drivers []string, err error) {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	if f.version == "" {
		if f.version, err = f.servedVersion(ctx); err != nil {
			return nil, err
		}
	}
	resource := schema.GroupVersionResource{Group: resourceapi.GroupName, Version: f.version, Resource: "resourceclaims"}
	object, err := f.client.Resource(resource).Namespace(c.namespace).Get(ctx, c.name, metav1.GetOptions{})
	if err != nil {
		f.version = "" // perhaps no longer served
		return nil, err
	}
	var claim struct {
		Status resourceapi.ResourceClaimStatus `json:"status"`
	}
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(object.Object, &claim); err != nil {
		return nil, err
	}
	if claim.Status.Allocation == nil {
		return nil, errors.New("no devices allocated yet")
	}
	admin := map[string]bool{}
	for _, r := range claim.Status.Allocation.Devices.Results {
		access := r.AdminAccess != nil && *r.AdminAccess
		before, known := admin[r.Driver]
		admin[r.Driver] = access && (before || !known)
	}
	maps.DeleteFunc(admin, func(_ string, access bool) bool { return !access })
	return slices.Collect(maps.Keys(admin)), nil
}

// servedVersion returns the newest of claimVersions that the API server has.
func (f *ClaimsFile) servedVersion(ctx context.Context) (string, error) {
	groups, err := f.discovery.ServerGroupsWithContext(ctx)
	if err != nil {
		return "", err
	}
	for _, version := range claimVersions {
		for _, g := range groups.Groups {
			served := func(v metav1.GroupVersionForDiscovery) bool { return v.Version == version }
			if g.Name == resourceapi.GroupName && slices.ContainsFunc(g.Versions, served) {
				return version, nil
			}
		}
	}
	return "", fmt.Errorf("the API server has none of %s %s", resourceapi.GroupName, strings.Join(claimVersions[:], ", "))
}
