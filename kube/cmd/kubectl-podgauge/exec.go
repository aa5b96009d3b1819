package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"

	"github.com/podgauge/podgauge/internal/cli"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/tools/remotecommand"
	utilexec "k8s.io/client-go/util/exec"
	"k8s.io/streaming/pkg/httpstream"
)

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
