package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"

	"github.com/podgauge/podgauge/internal/cli"
	"github.com/podgauge/podgauge/internal/text"
	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/tools/remotecommand"
	utilexec "k8s.io/client-go/util/exec"
	"k8s.io/streaming/pkg/httpstream"
)

// newNodeCommand returns a command that runs on podgauge's pod of a node, the
// first argument, with the other arguments.
func newNodeCommand(c *client, use, short, example string, args cobra.PositionalArgs,
	run func(ctx context.Context, p *corev1.Pod, args []string) error,
) *cobra.Command {
	return &cobra.Command{
		Use: use, Short: short, Long: short + ".", Example: example, Args: args,
		RunE: func(command *cobra.Command, args []string) error {
			if err := c.connect(); err != nil {
				return err
			}
			p, err := c.podOf(command.Context(), args[0])
			if err == nil {
				err = run(command.Context(), p, args[1:])
			}
			return cli.Failed(err)
		},
	}
}

// newExecCommand returns a command that prints the output of a command of
// podgauge on a node.
func newExecCommand(c *client, use, short, example string, args int, podgauge ...string) *cobra.Command {
	command := newNodeCommand(c, use, short, example, cobra.ExactArgs(args),
		func(ctx context.Context, p *corev1.Pod, args []string) error {
			return c.printOutput(ctx, p, slices.Concat([]string{"podgauge"}, podgauge, args))
		})
	command.PreRun = c.waitLonger
	return command
}

// printOutput prints the output of a command in a pod.
func (c *client) printOutput(ctx context.Context, p *corev1.Pod, command []string) error {
	ctx, cancel := context.WithTimeout(ctx, c.timeout)
	defer cancel()
	output, err := c.runInPod(ctx, p, command)
	if err != nil && !errors.Is(err, cli.ErrReported) {
		return err
	}
	if _, writeErr := io.WriteString(c.streams.Out, text.PrintableLines(string(output))); writeErr != nil {
		return writeErr
	}
	return err
}

// podOf returns the pod of podgauge on a node.
func (c *client) podOf(ctx context.Context, node string) (*corev1.Pod, error) {
	pods, err := c.pods(ctx)
	if err != nil {
		return nil, err
	}
	i := slices.IndexFunc(pods, func(p corev1.Pod) bool { return p.Spec.NodeName == node })
	if i < 0 {
		return nil, fmt.Errorf("node %q has no pod of podgauge", node)
	}
	return &pods[i], nil
}

// execInPod runs a command in podgauge's container, through a WebSocket or, on
// older API servers, SPDY.
func (c *client) execInPod(ctx context.Context, p *corev1.Pod, command []string) ([]byte, error) {
	u := c.kube.CoreV1().RESTClient().Post().Namespace(p.Namespace).Resource("pods").Name(p.Name).SubResource("exec").
		VersionedParams(&corev1.PodExecOptions{
			Container: container(p).Name, Command: command, Stdout: true, Stderr: true,
		}, scheme.ParameterCodec).URL()
	ws, err := remotecommand.NewWebSocketExecutor(c.config, http.MethodGet, u.String())
	if err != nil {
		return nil, err
	}
	spdy, err := remotecommand.NewSPDYExecutor(c.config, http.MethodPost, u)
	if err != nil {
		return nil, err
	}
	executor, err := remotecommand.NewFallbackExecutor(ws, spdy, func(err error) bool {
		return httpstream.IsUpgradeFailure(err) || httpstream.IsHTTPSProxyError(err)
	})
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	stdout, stderr := limitedBuffer{exceeded: cancel}, limitedBuffer{exceeded: cancel}
	err = executor.StreamWithContext(ctx, remotecommand.StreamOptions{Stdout: &stdout, Stderr: &stderr})
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	return execOutput(err, &stdout.data, &stderr.data)
}

// execOutput returns stdout of a command that began, with ErrReported after an
// exit status of 1: the output has the problems.
func execOutput(err error, stdout, stderr *bytes.Buffer) ([]byte, error) {
	exit, ended := errors.AsType[utilexec.ExitError](err)
	switch {
	case err == nil:
		return stdout.Bytes(), nil
	case ended && exit.ExitStatus() == cli.ExitError && stdout.Len() > 0:
		return stdout.Bytes(), cli.ErrReported
	case ended && stderr.Len() > 0:
		return nil, errors.New(strings.TrimSpace(stderr.String()))
	}
	return nil, err
}

// limitedBuffer bounds the output of a node, which may be broken. The executor
// only logs errors of a Write, so too long an output ends the command. The
// buffer is not embedded: its ReadFrom would replace Write.
type limitedBuffer struct {
	data     bytes.Buffer
	exceeded context.CancelCauseFunc
}

func (b *limitedBuffer) Write(p []byte) (int, error) {
	if b.data.Len()+len(p) > maxResponseBytes {
		err := fmt.Errorf("output larger than %d bytes", maxResponseBytes)
		b.exceeded(err)
		return 0, err
	}
	return b.data.Write(p)
}
