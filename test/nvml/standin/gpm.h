/* GPM: what a GPU's own counters say of the time between two samples. */

#ifndef GPM_H
#define GPM_H

#include "scenario.h"

/* Has the counters run on by what a scenario says until the one that takes its place begins to hold. */
void gpm_settle(const struct scenario *old, const struct scenario *fresh);

#endif
