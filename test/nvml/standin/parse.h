/* Understands the text of a scenario: a directive a line, as README.md lists them. */

#ifndef PARSE_H
#define PARSE_H

#include "scenario.h"

/* Adds what the text says to a scenario, and writes into the text as it goes. At the first line that it does not
 * understand, or at the end of a text that lacks its last newline, it complains on standard error, in one line, and
 * returns false. */
bool parse_scenario(struct scenario *, const char *path, char *text);

#endif
