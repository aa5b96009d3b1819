/* Parser of the scenario text: a directive per line. README.md lists the directives. */

#ifndef PARSE_H
#define PARSE_H

#include "scenario.h"

/* Adds the directives of the text to a scenario, and modifies the text. At an invalid line, or if the final newline is missing,
 * it writes one line on standard error and returns false. */
bool parse_scenario(struct scenario *, const char *path, char *text);

#endif
