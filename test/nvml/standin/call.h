/* What every call goes through before its function answers: it is counted, delayed, refused or let in. */

#ifndef CALL_H
#define CALL_H

#include <stdbool.h>
#include <stdint.h>

#include "nvml.h"
#include "scenario.h"

/* A call that is under way. */
struct call {
    int function;
    int gpu; /* an index, or NO_GPU */
    const struct scenario *scenario;
    double began, now; /* Unix time in seconds, before and after all delays */
    bool holds_driver;
    bool refused;
    nvmlReturn_t answer; /* what it gets when it is refused */
};

struct call call_enter(const char *function, int gpu);
void call_leave(struct call *);

/* Waits a moment inside a call without holding the driver up, and takes in what the scenario says after it. */
void call_pause(struct call *);

/* What a handle stands for: the index of its GPU, or NOT_A_HANDLE. */
enum { NOT_A_HANDLE = -1 };
int gpu_of(nvmlDevice_t);
nvmlDevice_t handle_of(int gpu);

/* The library lives while it was started more often than ended. */
void library_start(void);
void library_end(void);
bool library_started(void);

/* Reads a value of the call's GPU, of now. Returns false when the GPU has none. */
bool read_value(const struct call *, enum value, int64_t *out);

/* Copies a text into a caller's buffer, if it fits. */
nvmlReturn_t give_text(const char *text, char *out, unsigned int size);

/* CALL opens every function. It makes `call` known and leaves the call on every return. */
#define CALL(gpu_index) \
    __attribute__((cleanup(call_leave))) struct call call = call_enter(__func__, gpu_index); \
    if (call.refused) \
        return call.answer

/* DEVICE_CALL is CALL for a function that is given a device, and makes its `gpu` known. */
#define DEVICE_CALL(device) \
    CALL(gpu_of(device)); \
    __attribute__((unused)) const struct gpu *gpu = &call.scenario->gpus[call.gpu]

/* NEEDS refuses arguments that are not as they have to be: null pointers most of all. */
#define NEEDS(what) \
    do { \
        if (!(what)) \
            return NVML_ERROR_INVALID_ARGUMENT; \
    } while (0)

/* READ declares a variable with a value of the GPU's, or answers that it has none. */
#define READ(variable, value) \
    int64_t variable; \
    if (!read_value(&call, value_##value, &variable)) \
        return NVML_ERROR_NOT_SUPPORTED

#endif
