/* Common parts of all calls: count, delay, rejection and access to the scenario. */

#ifndef CALL_H
#define CALL_H

#include <stdbool.h>
#include <stdint.h>

#include "nvml.h"
#include "scenario.h"

/* A running call. */
struct call {
    int function;
    int gpu; /* an index, or NO_GPU */
    const struct scenario *scenario;
    double began, now; /* Unix times in seconds, before and after all delays */
    bool has_driver_lock;
    bool rejected;
    nvmlReturn_t ret; /* return code if rejected */
};

struct call call_begin(const char *function, int gpu);
void call_end(struct call *);

/* Waits for a change of the scenario inside a call, without the driver's lock. `changes` is from scenario_changes. */
void call_wait(struct call *, int changes, double seconds);

/* gpu_of returns the index of the GPU of a handle of a GPU or MIG device, or NOT_A_HANDLE. */
enum { NOT_A_HANDLE = -1 };
int gpu_of(nvmlDevice_t);
nvmlDevice_t handle_of(int gpu);

/* Handles of MIG devices. A MIG device keeps its handle while it exists. Later the handle is invalid or, with "reuse handles" in
 * the scenario, belongs to another MIG device. */
bool is_mig_device(nvmlDevice_t);
int gpu_of_mig_device(nvmlDevice_t);
const struct mig_device *mig_device_of(const struct call *, nvmlDevice_t); /* NULL for a GPU's handle and for a stale handle */
nvmlDevice_t handle_of_mig_device(const struct call *, int gpu, int index);

/* Reports whether a GPU's MIG mode is on. */
bool is_partitioned(const struct call *, int gpu);

/* The numbers in a profile's name: "1c.3g.40gb+me" has c 1, g 3, gb 40. */
struct size {
    unsigned int c, g, gb;
};
struct size profile_size(const struct mig_device *);

/* Returns a MIG device's memory in bytes. MIG devices of a GPU instance share their memory. */
unsigned long long mig_memory(const struct gpu *, const struct mig_device *);

/* Reports whether two MIG devices, possibly of different scenarios, are the same. */
bool same_mig_device(const struct mig_device *, const struct mig_device *);

/* Writes the UUID of a MIG device. */
void mig_uuid(const struct gpu *, const struct mig_device *, char *out, size_t size);

/* The library is initialized while it has more starts than ends. */
void library_start(void);
void library_end(void);
bool library_started(void);

/* Reads the current value of the call's GPU. Returns false if the GPU has no such value. */
bool read_value(const struct call *, enum value, int64_t *out);

/* Reads the number of the scenario for the call's function and a part of the GPU. Returns false without such a number. */
bool read_result(const struct call *, unsigned int part, int64_t *out);

/* Copies a text to the caller's buffer, if the text fits. */
nvmlReturn_t copy_text(const char *text, char *out, unsigned int size);

/* CALL begins each function. It declares `call` and ends the call at each return. */
#define CALL(gpu_index) \
    __attribute__((cleanup(call_end))) struct call call = call_begin(__func__, gpu_index); \
    if (call.rejected) \
        return call.ret

/* DEVICE_CALL is CALL for a function of a GPU, and declares `gpu`. It rejects MIG devices. */
#define DEVICE_CALL(device) \
    CALL(gpu_of(device)); \
    REQUIRE(!is_mig_device(device)); \
    __attribute__((unused)) const struct gpu *gpu = &call.scenario->gpus[call.gpu]

/* ANY_CALL also accepts an existing MIG device, and declares `mig`: NULL for a GPU. */
#define ANY_CALL(device) \
    CALL(gpu_of(device)); \
    __attribute__((unused)) const struct gpu *gpu = &call.scenario->gpus[call.gpu]; \
    const struct mig_device *mig = mig_device_of(&call, device); \
    REQUIRE(mig || !is_mig_device(device))

/* MIG_CALL only accepts a MIG device. */
#define MIG_CALL(device) \
    ANY_CALL(device); \
    if (!mig) \
        return NVML_ERROR_NOT_SUPPORTED

/* REQUIRE rejects invalid arguments such as null pointers. */
#define REQUIRE(condition) \
    do { \
        if (!(condition)) \
            return NVML_ERROR_INVALID_ARGUMENT; \
    } while (0)

/* READ declares a variable with a value of the GPU, or returns NOT_SUPPORTED if the GPU has no such value. */
#define READ(variable, value) \
    int64_t variable; \
    if (!read_value(&call, value_##value, &variable)) \
        return NVML_ERROR_NOT_SUPPORTED

#endif
