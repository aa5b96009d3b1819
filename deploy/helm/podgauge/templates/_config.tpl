{{- /* Checks of config.map by the rules of podgauge. The schema is files/config.schema.json, which is generated from the parser
(internal/config). TestVerdicts compares the verdicts of both. */}}

{{- /* podgauge.config.line is the line of a key, counted from 1: YAML has no line numbers, so the template searches for the keys in order.
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
    {{- $pattern := include "podgauge.config.keyPattern" . }}
    {{- range $i, $line := $lines }}
      {{- if and (lt $found 0) (ge $i $from) (regexMatch $pattern $line) }}{{ $found = $i }}{{ end }}
    {{- end }}
    {{- if ge $found 0 }}{{ $at = $found }}{{ end }}
  {{- end }}
{{- end }}
{{- add $at 1 }}
{{- end }}

{{- /* podgauge.config.keyPattern matches a line with the key. */}}
{{- define "podgauge.config.keyPattern" }}
{{- printf "(^|[\\s{,])[\"']?%s[\"']?\\s*:" (regexQuoteMeta .) }}
{{- end }}

{{- /* podgauge.config.fail ends the rendering. It takes the arguments of podgauge.config.check, and "what". */}}
{{- define "podgauge.config.fail" }}
{{- $path := join "." .path | replace ".[" "[" }}
{{- fail (printf "config.map.%s:%s: %s: %s" .name (include "podgauge.config.line" (dict "text" .text "path" .path)) $path .what) }}
{{- end }}

{{- /* podgauge.config.text checks the text before it is parsed. It takes (dict "name" "text" "value"). */}}
{{- define "podgauge.config.text" }}
{{- if gt (len .text) 131072 }}
  {{- fail (printf "config.map.%s: more than 128 KiB" .name) }}
{{- end }}
{{- if and (not .value) (not (contains "{" (regexReplaceAll "#[^\\n]*" .text ""))) }}
  {{- fail (printf "config.map.%s: is empty" .name) }}
{{- end }}
{{- if regexMatch "(?m)^---(\\s|$)" (regexReplaceAll "^(\\s*([#%][^\\n]*)?\\n)*---(\\s|$)" .text "") }}
  {{- fail (printf "config.map.%s: expected one document" .name) }}
{{- end }}
{{- end }}

{{- /* podgauge.config.keys lists the keys of a parsed config, one a line. */}}
{{- define "podgauge.config.keys" }}
{{- if kindIs "map" . }}
  {{- range $key, $value := . }}{{ printf "%s\n" $key }}{{ include "podgauge.config.keys" $value }}{{ end }}
{{- else if kindIs "slice" . }}
  {{- range . }}{{ include "podgauge.config.keys" . }}{{ end }}
{{- end }}
{{- end }}

{{- /* podgauge.config.duplicates rejects duplicate keys. The parser of helm keeps one of them, so that the text has more
keys than the parsed config. Keys within a block scalar cannot be told from others, and merges change the number. It takes (dict "name" "text" "value"). */}}
{{- define "podgauge.config.duplicates" }}
{{- $in := . }}
{{- $left := dict }}
{{- range splitList "\n" (include "podgauge.config.keys" .value) }}{{ $_ := set $left . (add1 (get $left . | int)) }}{{ end }}
{{- if not (regexMatch "<<[\"']?\\s*:|:\\s*[|>][0-9+-]*[ \\t]*(#[^\\n]*)?\\n" .text) }}
{{- range regexFindAll "(?s)#[^\\n]*|\"(?:\\\\.|[^\"\\\\])*\"(?:\\s*:)?|'(?:''|[^'])*'(?:\\s*:)?|[^\\s,{}\\[\\]\"'#][^\\s,{}\\[\\]]*(?:[ \\t]+:(?:\\s|$))?" .text -1 }}
  {{- $token := trim . }}
  {{- $key := trimSuffix ":" $token | trim | trimAll "\"'" }}
  {{- if and (hasSuffix ":" $token) (not (hasPrefix "#" $token)) }}
    {{- if not (hasKey $left $key) }}
      {{- fail (printf "config.map.%s: %s: expected a string as key" $in.name $key) }}
    {{- else if eq (get $left $key | int) 0 }}
      {{- $line := 0 }}
      {{- range $i, $text := splitList "\n" $in.text }}
        {{- if regexMatch (include "podgauge.config.keyPattern" $key) $text }}{{ $line = add1 $i }}{{ end }}
      {{- end }}
      {{- fail (printf "config.map.%s:%d: %s: given twice" $in.name (int $line) $key) }}
    {{- end }}
    {{- $_ := set $left $key (sub (get $left $key | int) 1) }}
  {{- end }}
{{- end }}
{{- end }}
{{- end }}

{{- /* podgauge.config.resourceName is what is wrong with the name of a resource: the rules of CheckResourceName. */}}
{{- define "podgauge.config.resourceName" }}
{{- $name := contains "/" . | ternary . (printf "nvidia.com/%s" .) }}
{{- $domain := regexFind "^[^/]*" $name }}
{{- $local := trimPrefix (printf "%s/" $domain) $name }}
{{- if or (contains "kubernetes.io/" $name) (hasPrefix "requests." $name) }}
  {{- printf "%q: kubernetes.io and requests. are reserved" $name }}
{{- else if or (gt (len $domain) 244) (not (regexMatch "^[a-z0-9]([a-z0-9-]*[a-z0-9])?(\\.[a-z0-9]([a-z0-9-]*[a-z0-9])?)*$" $domain)) }}
  {{- printf "%q: expected a domain name before the /, as in nvidia.com/gpu" $name }}
{{- else if or (gt (len $local) 63) (not (regexMatch "^[A-Za-z0-9]([A-Za-z0-9_.-]*[A-Za-z0-9])?$" $local)) }}
  {{- printf "%q: expected up to 63 letters, digits, -, _ and . after the /, beginning and ending with a letter or digit" $name }}
{{- end }}
{{- end }}

{{- /* podgauge.config.scalar is the text of a scalar, or empty for all other values. */}}
{{- define "podgauge.config.scalar" }}
{{- if and (kindIs "float64" .) (eq (toString .) (toString (floor .))) }}{{ printf "%.0f" . }}
{{- else if not (or (kindIs "map" .) (kindIs "slice" .) (kindIs "invalid" .)) }}{{ toString . }}
{{- end }}
{{- end }}

{{- /* podgauge.config.check takes (dict "name" of the config "text" of it "path" list "schema" "value"). A key without a value is
as good as absent. */}}
{{- define "podgauge.config.check" }}
{{- $in := . }}
{{- $schema := .schema }}
{{- $type := first (default (list "") $schema.type) }}
{{- $isScalar := not (or (kindIs "map" .value) (kindIs "slice" .value) (kindIs "invalid" .value)) }}
{{- $text := include "podgauge.config.scalar" .value }}
{{- $next := dict "name" .name "text" .text "path" .path }}
{{- if eq $type "" }}
{{- else if eq $type "object" }}
  {{- if not (kindIs "map" .value) }}{{ include "podgauge.config.fail" (set $in "what" "expected a mapping") }}{{ end }}
  {{- $known := default dict $schema.properties }}
  {{- range $key, $value := .value }}
    {{- $_ := set $next "path" (append $in.path $key) }}
    {{- with $schema.propertyNames }}
      {{- if not (regexMatch .pattern $key) }}{{ include "podgauge.config.fail" (set $next "what" (printf "%q: expected %s" $key .description)) }}{{ end }}
    {{- end }}
    {{- if not (or (hasKey $known $key) $schema.additionalProperties) }}
      {{- include "podgauge.config.fail" (set $next "what" (printf "unknown key; valid keys are %s" (keys $known | sortAlpha | join ", "))) }}
    {{- else if not (kindIs "invalid" $value) }}
      {{- include "podgauge.config.check" (merge (dict "value" $value "schema" (hasKey $known $key | ternary (get $known $key) $schema.additionalProperties)) $next) }}
    {{- end }}
  {{- end }}
  {{- range $schema.required }}
    {{- if has (toString (get $in.value .)) (list "" "<nil>") }}{{ include "podgauge.config.fail" (set $in "what" (printf "no %s" .)) }}{{ end }}
  {{- end }}
{{- else if eq $type "array" }}
  {{- $items := list }}
  {{- if kindIs "slice" .value }}
    {{- /* Empty items of a list of words have no effect. */}}
    {{- range .value }}{{ if or $schema.items.properties (not (kindIs "invalid" .)) }}{{ $items = append $items . }}{{ end }}{{ end }}
  {{- else if and $isScalar $schema.pattern }}
    {{- if not (regexMatch $schema.pattern $text) }}{{ include "podgauge.config.fail" (set $in "what" (printf "%q: expected %s" $text $schema.description)) }}{{ end }}
  {{- else if and $isScalar (has "string" $schema.type) }}
    {{- range splitList "," $text }}{{ if trim . }}{{ $items = append $items (trim .) }}{{ end }}{{ end }}
  {{- else }}
    {{- include "podgauge.config.fail" (set $in "what" "expected a list") }}
  {{- end }}
  {{- if and (lt (len $items) (int (default 0 $schema.minItems))) (or (kindIs "slice" .value) (not $schema.pattern)) }}
    {{- include "podgauge.config.fail" (set $in "what" "expected at least one value") }}
  {{- end }}
  {{- range $i, $value := $items }}
    {{- $path := kindIs "slice" $in.value | ternary (append $in.path (printf "[%d]" $i)) $in.path }}
    {{- include "podgauge.config.check" (merge (dict "value" $value "schema" $schema.items "path" $path) $next) }}
  {{- end }}
{{- else if eq $type "boolean" }}
  {{- if not (or (kindIs "bool" .value) (regexMatch "^([yY]|[yY]es|YES|[oO]n|ON|[nN]|[nN]o|NO|[oO]ff|OFF)$" (toString .value))) }}{{ include "podgauge.config.fail" (set $in "what" "expected true or false") }}{{ end }}
{{- else if not $isScalar }}
  {{- include "podgauge.config.fail" (set $in "what" (eq $type "integer" | ternary "expected a whole number" "expected a string")) }}
{{- else if eq $type "integer" }}
  {{- if or (not (regexMatch "^[+]?[0-9]{1,9}$" $text)) (lt (atoi $text) (int $schema.minimum)) (gt (atoi $text) (int $schema.maximum)) }}
    {{- include "podgauge.config.fail" (set $in "what" (printf "%s: expected a whole number from %d to %d" $text (int $schema.minimum) (int $schema.maximum))) }}
  {{- end }}
{{- else if and $schema.enum (not (has $text $schema.enum)) }}
  {{- include "podgauge.config.fail" (set $in "what" (printf "%q: expected one of %s" $text (join ", " $schema.enum))) }}
{{- else if and $schema.pattern (not (regexMatch $schema.pattern $text)) }}
  {{- include "podgauge.config.fail" (set $in "what" (printf "%q: expected %s" $text $schema.description)) }}
{{- else if and $schema.format $text }}
  {{- with include "podgauge.config.resourceName" $text }}{{ include "podgauge.config.fail" (set $in "what" .) }}{{ end }}
{{- end }}
{{- end }}

{{- /* podgauge.config.together checks settings that depend on each other. It takes what podgauge.config.check does, and "values": a
value of the chart beats the config. */}}
{{- define "podgauge.config.together" }}
{{- $in := . }}
{{- range $method, $sharing := .value.sharing }}
  {{- $path := list "sharing" $method }}
  {{- if $sharing }}
    {{- range $i, $resource := $sharing.resources }}
      {{- if and $sharing.renameByDefault (not $resource.rename) }}
        {{- with include "podgauge.config.resourceName" (printf "%s.shared" (include "podgauge.config.scalar" $resource.name)) }}
          {{- include "podgauge.config.fail" (merge (dict "path" (append $path "renameByDefault") "what" .) $in) }}
        {{- end }}
      {{- end }}
    {{- end }}
    {{- if eq $method "mps" }}
      {{- $flags := default dict $in.value.flags }}
      {{- if eq "mixed" (default "" (coalesce $in.values.migStrategy $flags.migStrategy)) }}
        {{- include "podgauge.config.fail" (merge (dict "path" $path "what" "incompatible with MIG strategy mixed: MPS shares whole GPUs only") $in) }}
      {{- else if not (coalesce $in.values.mps.root $flags.mpsRoot) }}
        {{- include "podgauge.config.fail" (merge (dict "path" $path "what" "requires mps.root or flags.mpsRoot, the folder of a running MPS control daemon") $in) }}
      {{- end }}
    {{- end }}
  {{- end }}
{{- end }}
{{- end }}
