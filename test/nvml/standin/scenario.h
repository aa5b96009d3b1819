/* What the machine is like right now: the scenario file, read again whenever it has changed. */

#ifndef SCENARIO_H
#define SCENARIO_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "nvml.h"

/* NO_GPU stands where a GPU's index would, for calls that concern none. */
enum { MAX_GPUS = 16, NO_GPU = MAX_GPUS };

/* The numbers that a GPU can be asked for, under the names that they have in a scenario. */
#define GPU_VALUES(X) \
    X(minor) X(numa) \
    X(memory_total) X(memory_reserved) X(memory_used) \
    X(utilization) X(memory_utilization) \
    X(temperature) X(memory_temperature) \
    X(power) X(power_limit) X(power_limit_min) X(power_limit_max) X(power_limit_default) X(energy) \
    X(graphics_clock) X(sm_clock) X(mem_clock) X(video_clock) \
    X(graphics_clock_max) X(sm_clock_max) X(mem_clock_max) X(video_clock_max) \
    X(pstate) X(throttle) X(throttle_supported) \
    X(throttle_ns_sw_power) X(throttle_ns_sync_boost) X(throttle_ns_sw_thermal) \
    X(throttle_ns_hw_thermal) X(throttle_ns_hw_power_brake) \
    X(pcie_generation) X(pcie_generation_max) X(pcie_width) X(pcie_width_max) X(pcie_replay) \
    X(ecc_mode) \
    X(ecc_volatile_corrected) X(ecc_volatile_uncorrected) \
    X(ecc_aggregate_corrected) X(ecc_aggregate_uncorrected) \
    X(remapped_corrected) X(remapped_uncorrected) X(remapped_pending) X(remapped_failure) \
    X(recovery_action) X(persistence_mode) X(compute_mode) X(mig_mode) X(event_types)

/* The texts, likewise. */
#define GPU_TEXTS(X) X(uuid) X(name) X(pci) X(serial) X(vbios)

enum value {
#define X(name) value_##name,
    GPU_VALUES(X)
#undef X
    VALUE_COUNT
};

enum text {
#define X(name) text_##name,
    GPU_TEXTS(X)
#undef X
    TEXT_COUNT
};

/* A curve is a value over time, which is counted in seconds since the scenario's epoch. */
struct curve {
    enum { ABSENT, CONSTANT, LINE, WAVE } shape;
    int64_t base;
    int64_t top;   /* of a wave */
    double slope;  /* of a line, per second */
    double period; /* of a wave, in seconds */
};

/* One physical GPU. Its MIG instances belong in here as well: every handle leads to a GPU first (gpu_of in call.c). */
struct gpu {
    char texts[TEXT_COUNT][NVML_DEVICE_NAME_V2_BUFFER_SIZE];
    struct curve values[VALUE_COUNT];
    bool lost;
};

/* A set of GPUs has a bit for each index, and one for NO_GPU. */
typedef uint32_t gpu_set;

/* A rule makes calls go wrong. */
struct rule {
    enum obstacle { FAIL, FAIL_FIELD, SLOW, HANG } obstacle;
    int target; /* a function, or ANY_FUNCTION; a field's id where that is what fails */
    gpu_set gpus;
    nvmlReturn_t answer;
    long delay_ms;
};

enum { ANY_FUNCTION = -1 };

/* A field that is answered otherwise than fields.c would, or that it does not know. */
struct field {
    gpu_set gpus;
    unsigned int id;
    unsigned int scope;
    bool any_scope;
    nvmlValueType_t type;
    struct curve curve;
};

struct process {
    gpu_set gpus;
    nvmlProcessInfo_t info;
};

struct event {
    unsigned long long serial;
    unsigned int gpu;
    unsigned long long type;
    unsigned long long data;
    unsigned int gpu_instance;
    unsigned int compute_instance;
};

#define LIST(type) struct { type *items; size_t count; }

/* A scenario is never written once it can be seen by calls. Each of them holds a reference to the one that it uses. */
struct scenario {
    int references; /* guarded by the lock in scenario.c */
    unsigned int gpu_count;
    char driver[NVML_SYSTEM_DRIVER_VERSION_BUFFER_SIZE];
    double epoch; /* Unix time in seconds */
    bool driver_lock;
    struct gpu gpus[MAX_GPUS];
    LIST(struct rule) rules;
    LIST(struct field) fields;
    LIST(struct process) processes;
    LIST(struct event) events;
};

/* Returns the scenario as the file now has it, and NULL before there was a valid one. It is given back with
 * scenario_release. */
const struct scenario *scenario_now(void);
void scenario_release(const struct scenario *);

/* Tells whether there is a scenario file: without one there is no driver to start. */
bool scenario_present(void);

/* The newest rule of the kind for a function (or a field) and a GPU; NULL when there is none. */
const struct rule *scenario_rule(const struct scenario *, enum obstacle, int target, int gpu);

/* Computes a curve's value at a Unix time. Returns false for one that is absent. */
bool curve_at(const struct scenario *, const struct curve *, double unix_seconds, int64_t *out);

/* The time in seconds since 1970. It never goes back while the process lives, so that counters do not either. */
double unix_seconds(void);

#endif
