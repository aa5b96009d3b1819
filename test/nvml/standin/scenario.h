/* What the machine is like right now: the scenario file, read again whenever it has changed. */

#ifndef SCENARIO_H
#define SCENARIO_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "nvml.h"

/* NO_GPU stands where a GPU's index would, for calls that concern none. */
#ifndef MAX_GPUS
#define MAX_GPUS 16
#endif
enum { NO_GPU = MAX_GPUS };

/* How many MIG devices a GPU can have, as it says itself (nvmlDeviceGetMaxMigDeviceCount). */
enum { MAX_SLICES = 7 };

/* The numbers that a GPU can be asked for, under the names that they have in a scenario. */
#define GPU_VALUES(X) \
    X(minor) X(numa) \
    X(architecture) X(pci_id) X(cores) X(memory_bus_width) X(slice_multiprocessors) X(virtualization) X(addressing_mode) \
    X(memory_total) X(memory_reserved) X(memory_used) X(bar1_total) X(bar1_used) \
    X(utilization) X(memory_utilization) \
    X(encoder_utilization) X(decoder_utilization) X(jpeg_utilization) X(ofa_utilization) X(gpm) \
    X(temperature) X(memory_temperature) X(temperature_margin) \
    X(temperature_shutdown) X(temperature_slowdown) X(temperature_max) X(temperature_memory_max) \
    X(margin_shutdown) X(margin_slowdown) X(margin_max) X(margin_memory_max) \
    X(power) X(power_limit) X(power_limit_min) X(power_limit_max) X(power_limit_default) X(energy) \
    X(graphics_clock) X(sm_clock) X(mem_clock) X(video_clock) \
    X(graphics_clock_max) X(sm_clock_max) X(mem_clock_max) X(video_clock_max) \
    X(pstate) X(throttle) X(throttle_supported) \
    X(throttle_ns_sw_power) X(throttle_ns_sync_boost) X(throttle_ns_sw_thermal) \
    X(throttle_ns_hw_thermal) X(throttle_ns_hw_power_brake) X(throttle_ns_board_limit) X(throttle_ns_reliability) \
    X(pcie_generation) X(pcie_generation_max) X(pcie_width) X(pcie_width_max) X(pcie_replay) X(pcie_tx) X(pcie_rx) \
    X(nvlink_version) X(nvlink_speed) X(c2c) \
    X(ecc_mode) \
    X(ecc_volatile_corrected) X(ecc_volatile_uncorrected) \
    X(ecc_aggregate_corrected) X(ecc_aggregate_uncorrected) \
    X(sram_volatile_corrected) X(sram_volatile_parity) X(sram_volatile_secded) \
    X(sram_aggregate_corrected) X(sram_aggregate_parity) X(sram_aggregate_secded) \
    X(sram_l2) X(sram_sm) X(sram_pcie) X(sram_mcu) X(sram_other) X(sram_threshold) \
    X(remapped_corrected) X(remapped_uncorrected) X(remapped_pending) X(remapped_failure) \
    X(remapped_corrected_inactive) X(remapped_uncorrected_inactive) \
    X(remap_banks_max) X(remap_banks_high) X(remap_banks_partial) X(remap_banks_low) X(remap_banks_none) \
    X(retired_single) X(retired_double) X(retired_pending) \
    X(repair_channel) X(repair_tpc) X(unrepairable) \
    X(fabric_state) X(fabric_status) X(fabric_clique) X(fabric_health) X(fabric_summary) \
    X(platform_slot) X(platform_tray) X(platform_host) X(platform_peer) X(platform_module) \
    X(recovery_action) X(persistence_mode) X(compute_mode) X(mig_mode) X(event_types) X(event_types_refused)

/* The texts, likewise. */
#define GPU_TEXTS(X) X(uuid) X(name) X(pci) X(serial) X(vbios) X(compute_capability) X(chassis_serial)

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

/* A MIG device: a compute instance, and the GPU instance that it is in. */
struct slice {
    bool present;
    unsigned int gi, ci;
    char profile[32]; /* "1c.3g.40gb+me" */
    char uuid[96];    /* "": one that is made from the GPU and the two ids; "old": as drivers made it up to 460 */
    /* In bytes. What a slice does not say is what another of its GPU instance says, which they share. */
    unsigned long long memory; /* 0: it does not say */
    struct curve used, bar1_used;
};

/* One end of an NVLink. */
struct link {
    enum { NO_LINK, LINK_OFF, LINK_TO_SWITCH, LINK_TO_GPU } kind;
    int gpu; /* at the other end */
};

/* One physical GPU. Its slices exist while its MIG mode is on, each at its index. */
struct gpu {
    char texts[TEXT_COUNT][NVML_DEVICE_NAME_V2_BUFFER_SIZE];
    struct curve values[VALUE_COUNT];
    bool lost;
    double reset; /* the Unix time at which it was reset; 0: it was not */
    struct slice slices[MAX_SLICES];
    struct link links[NVML_NVLINK_MAX_LINKS];
    nvmlGpuTopologyLevel_t ancestors[MAX_GPUS]; /* what the GPU has in common with each other */
};

/* A set of GPUs has a bit for each index, and one for NO_GPU. */
__extension__ typedef unsigned __int128 gpu_set;

/* A rule makes calls go wrong. */
struct rule {
    enum obstacle { FAIL, FAIL_FIELD, FAIL_METRIC, SLOW, HANG } obstacle;
    int target; /* a function, or ANY_FUNCTION; the id of a field or a metric where that is what fails */
    gpu_set gpus;
    nvmlReturn_t answer;
    long delay_ms;
};

enum { ANY_FUNCTION = -1 };

/* What a number is about, besides the GPU. */
struct scope {
    enum { ANY_SCOPE, ONE_SCOPE, EACH_LINK } kind;
    unsigned int number; /* of the ONE_SCOPE: a field's scope, a metric's GPU instance */
};

/* Fields that are answered otherwise than field.c would, or that it does not know. */
struct field {
    gpu_set gpus;
    unsigned int first, last; /* ids */
    struct scope scope;
    nvmlValueType_t type;
    struct curve curve;
};

/* GPM metrics. */
struct metric {
    gpu_set gpus;
    unsigned int first, last; /* ids */
    struct scope scope;
    struct curve curve;
};

/* The number that a function returns, of the GPU or of a numbered part of it. */
struct result {
    gpu_set gpus;
    int function;
    struct scope scope; /* ONE_SCOPE: this part */
    struct curve curve;
};

/* What a process is: several of these at the same time, perhaps. */
enum { COMPUTE = 1, GRAPHICS = 2, MPS = 4 };

struct process {
    gpu_set gpus;
    unsigned int kinds;
    unsigned int pid, gi, ci;
    struct curve bytes; /* absent: the driver does not know */
    struct curve sm, memory, encoder, decoder; /* percent */
};

struct event {
    unsigned long long serial, last; /* it happens once for each serial from one to the other */
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
    bool add_fields; /* nvmlDeviceGetFieldValues adds to what the caller left in an entry */
    bool reuse_handles; /* a new slice gets the handle of one that is gone */
    double since; /* the Unix time in seconds at which it began to hold */
    enum { CC_NONE, CC_OFF, CC_ON, CC_DEVTOOLS } confidential;
    struct gpu gpus[MAX_GPUS];
    LIST(struct rule) rules;
    LIST(struct field) fields;
    LIST(struct metric) metrics;
    LIST(struct result) results;
    LIST(struct process) processes;
    LIST(struct event) events;
};

/* Returns the scenario as the file now has it, and NULL before there was a valid one. It is given back with
 * scenario_release. */
const struct scenario *scenario_now(void);
void scenario_release(const struct scenario *);

/* Opens a descriptor of changes of the scenario file, for scenario_wait and close; -1 without inotify. */
int scenario_changes(void);

/* Waits for a change of the scenario file. Returns after the given time at the latest, and earlier for other files of the folder. */
void scenario_wait(int changes, double seconds);

/* Tells whether there is a scenario file: without one there is no driver to start. */
bool scenario_present(void);

/* The newest rule of the kind for a function (or a field) and a GPU; NULL when there is none. */
const struct rule *scenario_rule(const struct scenario *, enum obstacle, int target, int gpu);

/* Computes a curve's value at a Unix time. Returns false for one that is absent. */
bool curve_at(const struct scenario *, const struct curve *, double unix_seconds, int64_t *out);

/* Computes the integral of a curve between two Unix times. Returns false for one that is absent. */
bool curve_sum(const struct scenario *, const struct curve *, double from, double to, double *out);

/* The time in seconds since 1970. It never goes back while the process lives, so that counters do not either. */
double unix_seconds(void);

#endif
