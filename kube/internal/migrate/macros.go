package migrate

import (
	"fmt"
	"regexp"
	"strings"
)

// macros replaces Grafana's variables in a query, which PromQL's parser does not know, by placeholders that the
// parser's printer leaves as they are.
type macros struct {
	pairs []string // placeholder, text, …
}

// variablePattern matches strings and comments of PromQL, in which variables need no placeholder, and otherwise a
// variable: $name, ${name:format}, [[name]].
var variablePattern = regexp.MustCompile(`"(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*'|` + "`[^`]*`" +
	`|#[^\n]*|(?:\$\{[^}]*\}|\$\w+|\[\[\w+(?::\w+)?\]\])\w*`)

// durationPattern matches the text before a duration.
var durationPattern = regexp.MustCompile(`(?:[^\[]\[|\[[^\]]*:|offset)\s*$`)

// The placeholders. A duration is no whole number of years or weeks, because Prometheus prints it as it is written.
const (
	durationPlaceholder   = "36%03dd1h"
	numberPlaceholder     = "98765432%03d"
	identifierPlaceholder = "grafana_variable_%03d"
)

// hide returns the query with placeholders. Variables that are no durations become numbers or identifiers.
func (m *macros) hide(query, otherwise string) string {
	var text strings.Builder
	end := 0
	for _, at := range variablePattern.FindAllStringIndex(query, -1) {
		variable := query[at[0]:at[1]]
		text.WriteString(query[end:at[0]])
		end = at[1]
		switch {
		case variable[0] != '$' && variable[0] != '[':
			text.WriteString(variable)
		case durationPattern.MatchString(" " + query[:at[0]]):
			text.WriteString(m.add(variable, durationPlaceholder))
		default:
			text.WriteString(m.add(variable, otherwise))
		}
	}
	text.WriteString(query[end:])
	return text.String()
}

// add returns the placeholder of a text.
func (m *macros) add(text, placeholder string) string {
	placeholder = fmt.Sprintf(placeholder, len(m.pairs)/2+1)
	m.pairs = append(m.pairs, placeholder, text)
	return placeholder
}

// restore returns a query with the texts of the placeholders.
func (m *macros) restore(query string) string {
	return strings.NewReplacer(m.pairs...).Replace(query)
}
