package lib

import (
	"fmt"
	"os"
	"time"
	"unsafe"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"golang.org/x/sys/unix"
)

/*
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <unistd.h>

typedef struct { void *function, *set; unsigned int timeout; } wait_request;

typedef struct {
	struct { void *device; unsigned long long type, data; unsigned int gpu_instance, compute_instance; } event; // nvmlEventData_t
	int ret;
} wait_response;

static void *serve_waits(void *arg)
{
	int socket = (int)(intptr_t)arg;
	wait_request request;
	while (read(socket, &request, sizeof request) == sizeof request) {
		wait_response response = {0};
		response.ret = ((int (*)(void *, void *, unsigned int))request.function)(request.set, &response.event, request.timeout);
		if (write(socket, &response, sizeof response) != sizeof response)
			break;
	}
	close(socket);
	return NULL;
}

// start_waits starts the thread with all signals blocked: Go's handlers expect Go's threads, and a signal would interrupt a wait.
static int start_waits(int socket)
{
	pthread_t thread;
	sigset_t all, before;
	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &before);
	int err = pthread_create(&thread, NULL, serve_waits, (void *)(intptr_t)socket);
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	if (err == 0)
		pthread_detach(thread);
	return err;
}
*/
import "C"

// EventWaiter waits for events on a C thread of its own, while its goroutine waits in Go's poller. A blocking call from a goroutine keeps
// Go's monitor thread awake for 10 ms, looking every 20 to 75 µs: most of an idle process' context switches.
type EventWaiter struct{ socket *os.File }

// NewEventWaiter starts the thread.
func NewEventWaiter() (*EventWaiter, error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("open socket pair: %w", err)
	}
	err = unix.SetNonblock(fds[0], true)
	if err == nil {
		if errno := C.start_waits(C.int(fds[1])); errno != 0 {
			err = unix.Errno(errno)
		}
	}
	if err != nil {
		_, _ = unix.Close(fds[0]), unix.Close(fds[1]) // nothing was written
		return nil, fmt.Errorf("start thread: %w", err)
	}
	return &EventWaiter{os.NewFile(uintptr(fds[0]), "events")}, nil
}

// Wait calls nvmlEventSetWait_v2, whose address is f. Device is the C pointer of the GPU's handle. Only one Wait may run at a time.
func (w *EventWaiter) Wait(f unsafe.Pointer, set nvml.EventSet, timeout time.Duration) (event nvml.EventData, device unsafe.Pointer, ret nvml.Return, err error) {
	request := C.wait_request{function: f, set: PointerOf(set), timeout: C.uint(timeout.Milliseconds())}
	var response C.wait_response
	if _, err = w.socket.Write(unsafe.Slice((*byte)(unsafe.Pointer(&request)), unsafe.Sizeof(request))); err == nil {
		_, err = w.socket.Read(unsafe.Slice((*byte)(unsafe.Pointer(&response)), unsafe.Sizeof(response)))
	}
	e := response.event
	event = nvml.EventData{
		EventType: uint64(e._type), EventData: uint64(e.data), GpuInstanceId: uint32(e.gpu_instance), ComputeInstanceId: uint32(e.compute_instance),
	}
	return event, e.device, nvml.Return(response.ret), err
}

// Close ends the thread. No Wait may be under way.
func (w *EventWaiter) Close() { _ = w.socket.Close() } // the thread reads its end
