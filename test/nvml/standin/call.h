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

/* Waits for a change of the scenario inside a call, without the driver's lock. `changes` is from scenario_changes. */
void call_wait(struct call *, int changes, double seconds);

/* What a handle stands for: the index of its GPU, or NOT_A_HANDLE. That of a slice leads to its GPU as well. */
enum { NOT_A_HANDLE = -1 };
int gpu_of(nvmlDevice_t);
nvmlDevice_t handle_of(int gpu);

/* The handles of slices. A slice has the same one as long as it exists; afterwards that stands for nothing, or, where the
 * scenario says "reuse handles", for another slice. */
bool is_slice(nvmlDevice_t);
int gpu_of_slice(nvmlDevice_t);
const struct slice *slice_of(const struct call *, nvmlDevice_t); /* NULL for a GPU's handle, and for a stale one */
nvmlDevice_t handle_of_slice(const struct call *, int gpu, int index);

/* Tells whether a GPU's MIG mode is on. */
bool is_partitioned(const struct call *, int gpu);

/* What a profile's name says: "1c.3g.40gb+me" is one compute slice of three, and 40 GB. */
struct size {
    unsigned int c, g, gb;
};
struct size slice_size(const struct slice *);

/* A slice's memory in bytes. Slices of one GPU instance share it. */
unsigned long long slice_memory(const struct gpu *, const struct slice *);

/* Tells whether two slices are the same one, at different times perhaps. */
bool same_life(const struct slice *, const struct slice *);

/* What a slice says as its UUID. */
void slice_uuid(const struct gpu *, const struct slice *, char *out, size_t size);

/* The library lives while it was started more often than ended. */
void library_start(void);
void library_end(void);
bool library_started(void);

/* Reads a value of the call's GPU, of now. Returns false when the GPU has none. */
bool read_value(const struct call *, enum value, int64_t *out);

/* Reads the number that the scenario has for the call's function and a part of the GPU. Returns false if there is none. */
bool read_result(const struct call *, unsigned int part, int64_t *out);

/* Copies a text into a caller's buffer, if it fits. */
nvmlReturn_t give_text(const char *text, char *out, unsigned int size);

/* CALL opens every function. It makes `call` known and leaves the call on every return. */
#define CALL(gpu_index) \
    __attribute__((cleanup(call_leave))) struct call call = call_enter(__func__, gpu_index); \
    if (call.refused) \
        return call.answer

/* DEVICE_CALL is CALL for a function that is given a GPU, and makes its `gpu` known. It refuses slices. */
#define DEVICE_CALL(device) \
    CALL(gpu_of(device)); \
    NEEDS(!is_slice(device)); \
    __attribute__((unused)) const struct gpu *gpu = &call.scenario->gpus[call.gpu]

/* ANY_CALL also takes a slice, as long as it exists, and makes its `slice` known: NULL where it was given a GPU. */
#define ANY_CALL(device) \
    CALL(gpu_of(device)); \
    __attribute__((unused)) const struct gpu *gpu = &call.scenario->gpus[call.gpu]; \
    const struct slice *slice = slice_of(&call, device); \
    NEEDS(slice || !is_slice(device))

/* SLICE_CALL takes a slice only. */
#define SLICE_CALL(device) \
    ANY_CALL(device); \
    if (!slice) \
        return NVML_ERROR_NOT_SUPPORTED

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
