/* Event sets: each event of a GPU is delivered once to each registered set. */

#ifndef EVENT_H
#define EVENT_H

/* Frees all event sets, at the end of the library. */
void event_sets_free(void);

#endif
