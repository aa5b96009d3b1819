{{- /* Checks of config.map. The schema is files/config.schema.json, which is made from what podgauge reads; podgauge validate checks
more. */}}

{{- /* podgauge.config.line is the line of a key, counted from 1: YAML gives no lines, so keys are looked for one below the other.
It takes (dict "text" string "path" list). */}}
{{- define "podgauge.config.line" }}
{{- $lines := splitList "\n" .text }}
{{- $at := 0 }}
{{- range .path }}
  {{- $index := regexFind "^\\[[0-9]+\\]$" . | trimAll "[]" }}
  {{- if ne $index "" }}
    {{- $left := atoi $index }}
    {{- $from := $at }}
    {{- $mark := "" }}
    {{- range $i, $line := $lines }}
      {{- $dash := regexFind "^\\s*-(\\s|$)" $line | trimSuffix "\r" }}
      {{- if and (gt $i $from) (ne $dash "") (or (eq $mark "") (eq $mark $dash)) (ge $left 0) }}
        {{- $mark = $dash }}
        {{- if eq $left 0 }}{{ $at = $i }}{{ end }}
        {{- $left = sub $left 1 }}
      {{- end }}
    {{- end }}
  {{- else }}
    {{- $found := -1 }}
    {{- $from := $at }}
    {{- $pattern := printf "(^|[\\s{,])[\"']?%s[\"']?\\s*:" (regexQuoteMeta .) }}
    {{- range $i, $line := $lines }}
      {{- if and (lt $found 0) (ge $i $from) (regexMatch $pattern $line) }}{{ $found = $i }}{{ end }}
    {{- end }}
    {{- if ge $found 0 }}{{ $at = $found }}{{ end }}
  {{- end }}
{{- end }}
{{- add $at 1 }}
{{- end }}

{{- /* podgauge.config.fail ends the rendering. It takes what podgauge.config.check does, and "what". */}}
{{- define "podgauge.config.fail" }}
{{- $path := join "." .path | replace ".[" "[" }}
{{- fail (printf "config.map.%s:%s: %s: %s" .name (include "podgauge.config.line" (dict "text" .text "path" .path)) $path .what) }}
{{- end }}

{{- /* podgauge.config.check takes (dict "name" of the config "text" of it "path" list "schema" "value"). null is as good as absent. */}}
{{- define "podgauge.config.check" }}
{{- $in := . }}
{{- $schema := .schema }}
{{- $types := default list $schema.type }}
{{- $kinds := dict "map" "object" "slice" "array" "string" "string" "bool" "boolean" "float64" "integer" "int64" "integer" "int" "integer" }}
{{- $type := get $kinds (kindOf .value) }}
{{- if and (eq $type "integer") (has "string" $types) }}{{ $type = "string" }}{{ end }}
{{- if and $types (not (has $type $types)) (not (kindIs "invalid" .value)) }}
  {{- $words := dict "object" "a mapping" "array" "a list" "string" "a string" "boolean" "true or false" "integer" "a whole number" }}
  {{- include "podgauge.config.fail" (set $in "what" (printf "want %s" (get $words (first $types)))) }}
{{- end }}
{{- if eq $type "object" }}
  {{- range $key, $value := .value }}
    {{- $at := append $in.path $key }}
    {{- $next := dict "name" $in.name "text" $in.text "path" $at "value" $value }}
    {{- $known := default dict $schema.properties }}
    {{- if hasKey $known $key }}
      {{- include "podgauge.config.check" (set $next "schema" (get $known $key)) }}
    {{- else if $schema.additionalProperties }}
      {{- include "podgauge.config.check" (set $next "schema" $schema.additionalProperties) }}
    {{- else if $known }}
      {{- include "podgauge.config.fail" (set $next "what" (printf "unknown key; valid keys are %s" (keys $known | sortAlpha | join ", "))) }}
    {{- end }}
  {{- end }}
  {{- range $schema.required }}
    {{- if not (hasKey $in.value .) }}{{ include "podgauge.config.fail" (set $in "what" (printf "no %s" .)) }}{{ end }}
  {{- end }}
{{- else if eq $type "array" }}
  {{- range $i, $value := .value }}
    {{- include "podgauge.config.check" (dict "name" $in.name "text" $in.text "path" (append $in.path (printf "[%d]" $i)) "schema" (default dict $schema.items) "value" $value) }}
  {{- end }}
{{- else if eq $type "string" }}
  {{- $enum := default $schema.enum (default dict $schema.items).enum }}
  {{- $words := ternary (splitList "," (toString .value)) (list (toString .value)) (hasKey $schema "items") }}
  {{- range $words }}
    {{- if and $enum (not (has (trim .) $enum)) }}
      {{- include "podgauge.config.fail" (set $in "what" (printf "%q: want one of %s" . (join ", " $enum))) }}
    {{- end }}
  {{- end }}
{{- else if eq $type "integer" }}
  {{- if or (ne (float64 .value) (floor .value)) (lt (float64 .value) (float64 (default 0 $schema.minimum))) }}
    {{- include "podgauge.config.fail" (set $in "what" (printf "%v: want a whole number from %v" .value (default 0 $schema.minimum))) }}
  {{- end }}
{{- end }}
{{- end }}
