package podsfixture

import (
	"testing"

	"github.com/bufbuild/protocompile"
	"github.com/podgauge/podgauge/internal/pods/podpb"
	"github.com/podgauge/podgauge/test/helpers/require"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protodesc"
)

// TestSchema checks that pod.pb.go is generated from the present pod.proto.
func TestSchema(t *testing.T) {
	compiler := protocompile.Compiler{
		Resolver: protocompile.WithStandardImports(&protocompile.SourceResolver{ImportPaths: []string{"../../.."}}),
	}
	files, err := compiler.Compile(t.Context(), "internal/pods/podpb/pod.proto")
	require.NoError(t, err)
	schema := protodesc.ToFileDescriptorProto(files[0])
	generated := protodesc.ToFileDescriptorProto(podpb.File_internal_pods_podpb_pod_proto)
	if !proto.Equal(schema, generated) {
		t.Errorf("pod.pb.go differs from pod.proto, whose comment has the command:\ngot %v\nwant %v", generated, schema)
	}
}
