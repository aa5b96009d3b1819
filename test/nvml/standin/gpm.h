/* GPM: means of a GPU's performance counters between two samples. */

#ifndef GPM_H
#define GPM_H

#include "scenario.h"

/* Advances the counters by the old scenario up to the time of the new scenario. */
void gpm_advance(const struct scenario *old, const struct scenario *fresh);

#endif
