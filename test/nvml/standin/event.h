/* Event sets: what happened to which GPU, told once to each set that asked. */

#ifndef EVENT_H
#define EVENT_H

/* Frees all event sets, as ending the library does. */
void event_sets_free(void);

#endif
