/* The current state of the machine: the scenario file, read again after each change. */

#ifndef SCENARIO_H
#define SCENARIO_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "nvml.h"

/* NO_GPU is the index for calls without a GPU. */
#ifndef MAX_GPUS
#define MAX_GPUS 16
#endif
enum { NO_GPU = MAX_GPUS };

/* Result of nvmlDeviceGetMaxMigDeviceCount for a MIG-enabled GPU. */
enum { MAX_MIG_DEVICES = 7 };

/* The numbers of a GPU, by their scenario keys. */
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

/* The texts of a GPU, by their scenario keys. */
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

/* A curve is a value over time, in seconds since the scenario's epoch. */
struct curve {
    enum { ABSENT, CONSTANT, LINE, WAVE } shape;
    int64_t base;
    int64_t top;   /* of a wave */
    double slope;  /* of a line, per second */
    double period; /* of a wave, in seconds */
};

/* A MIG device: a compute instance and its GPU instance. */
struct mig_device {
    bool present;
    unsigned int gi, ci;
    char profile[32]; /* "1c.3g.40gb+me" */
    char uuid[96];    /* "": derived from the GPU and both ids; "old": the form of drivers up to 460 */
    /* In bytes. An unset value is that of another MIG device of the GPU instance. */
    unsigned long long memory; /* 0: unset */
    struct curve used, bar1_used;
};

/* An NVLink of a GPU. */
struct link {
    enum { NO_LINK, LINK_OFF, LINK_TO_SWITCH, LINK_TO_GPU } kind;
    int gpu; /* at the other end */
};

/* A physical GPU. Its MIG devices exist while MIG mode is on. */
struct gpu {
    char texts[TEXT_COUNT][NVML_DEVICE_NAME_V2_BUFFER_SIZE];
    struct curve values[VALUE_COUNT];
    bool lost;
    double reset; /* Unix time of the reset; 0: none */
    struct mig_device mig_devices[MAX_MIG_DEVICES];
    struct link links[NVML_NVLINK_MAX_LINKS];
    nvmlGpuTopologyLevel_t ancestors[MAX_GPUS]; /* topology level of the GPU with each GPU */
};

/* A set of GPUs has a bit for each index and for NO_GPU. */
__extension__ typedef unsigned __int128 gpu_set;

/* A rule makes calls fail, slow down or hang. */
struct rule {
    enum action { FAIL, FAIL_FIELD, FAIL_METRIC, SLOW, HANG } action;
    int target; /* a function or ANY_FUNCTION; for FAIL_FIELD and FAIL_METRIC an id */
    gpu_set gpus;
    nvmlReturn_t ret;
    long delay_ms;
};

enum { ANY_FUNCTION = -1 };

/* The scope of a number. */
struct scope {
    enum { ANY_SCOPE, ONE_SCOPE, EACH_LINK } kind;
    unsigned int number; /* for ONE_SCOPE: a field's scope, a metric's GPU instance, or a part */
};

/* Fields with a value of the scenario, in place of the value of field.c. */
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

/* The number that a function returns for the GPU or a numbered part. */
struct result {
    gpu_set gpus;
    int function;
    struct scope scope; /* ONE_SCOPE: a part */
    struct curve curve;
};

/* Kinds of a process; a process can have several. */
enum { COMPUTE = 1, GRAPHICS = 2, MPS = 4 };

struct process {
    gpu_set gpus;
    unsigned int kinds;
    unsigned int pid, gi, ci;
    struct curve bytes; /* absent: unknown */
    struct curve sm, memory, encoder, decoder; /* percent */
};

struct event {
    unsigned long long serial, last; /* the event occurs once for each serial in this range */
    unsigned int gpu;
    unsigned long long type;
    unsigned long long data;
    unsigned int gpu_instance;
    unsigned int compute_instance;
};

#define LIST(type) struct { type *items; size_t count; }

/* A scenario does not change after parsing. Each call has a reference to its scenario. */
struct scenario {
    int references; /* guarded by the lock in scenario.c */
    unsigned int gpu_count;
    char driver[NVML_SYSTEM_DRIVER_VERSION_BUFFER_SIZE];
    double epoch; /* Unix time in seconds */
    bool driver_lock;
    bool add_fields; /* nvmlDeviceGetFieldValues adds to the caller's values */
    bool reuse_handles; /* a new MIG device reuses the handle of a removed one */
    bool short_processes; /* all process lists have entries of the first version, of 16 bytes */
    double since; /* Unix time of the parsing, in seconds */
    enum { CC_NONE, CC_OFF, CC_ON, CC_DEVTOOLS, CC_UNREADY } confidential;
    struct gpu gpus[MAX_GPUS];
    LIST(struct rule) rules;
    LIST(struct field) fields;
    LIST(struct metric) metrics;
    LIST(struct result) results;
    LIST(struct process) processes;
    LIST(struct event) events;
};

/* Returns the current scenario, or NULL before the first valid file. The caller releases it with scenario_release. */
const struct scenario *scenario_now(void);
void scenario_release(const struct scenario *);

/* Opens a descriptor of changes of the scenario file, for scenario_wait and close; -1 without inotify. */
int scenario_changes(void);

/* Waits for a change of the scenario file. Returns after the given time at the latest, and earlier for other files of the folder. */
void scenario_wait(int changes, double seconds);

/* Reports whether the scenario file exists. Without the file, the node has no driver. */
bool scenario_present(void);

/* Returns the newest rule of the kind for a function, field or metric and a GPU, or NULL. */
const struct rule *scenario_rule(const struct scenario *, enum action, int target, int gpu);

/* Computes a curve's value at a Unix time. Returns false for an absent curve. */
bool curve_at(const struct scenario *, const struct curve *, double unix_seconds, int64_t *out);

/* Computes the integral of a curve between two Unix times. Returns false for an absent curve. */
bool curve_sum(const struct scenario *, const struct curve *, double from, double to, double *out);

/* Returns the Unix time in seconds. The time is monotonic within the process, so that counters are too. */
double unix_seconds(void);

#endif
