{{- define "podgauge.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 63 | trimSuffix "-" }}
{{- end }}

{{- define "podgauge.fullname" -}}
{{- $name := include "podgauge.name" . }}
{{- if .Values.fullnameOverride }}
{{- .Values.fullnameOverride | trunc 63 | trimSuffix "-" }}
{{- else if contains $name .Release.Name }}
{{- .Release.Name | trunc 63 | trimSuffix "-" }}
{{- else }}
{{- printf "%s-%s" .Release.Name $name | trunc 63 | trimSuffix "-" }}
{{- end }}
{{- end }}

{{- define "podgauge.namespace" -}}
{{- default .Release.Namespace .Values.namespaceOverride }}
{{- end }}

{{- define "podgauge.serviceAccountName" -}}
{{- if .Values.serviceAccount.create }}
{{- default (include "podgauge.fullname" .) .Values.serviceAccount.name }}
{{- else }}
{{- default "default" .Values.serviceAccount.name }}
{{- end }}
{{- end }}

{{- define "podgauge.selectorLabels" -}}
app.kubernetes.io/name: {{ include "podgauge.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "podgauge.labels" -}}
{{- $own := dict "helm.sh/chart" (printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_") "app.kubernetes.io/managed-by" .Release.Service "app.kubernetes.io/version" (include "podgauge.version" .) }}
{{- toYaml (mergeOverwrite (deepCopy .Values.commonLabels) $own (include "podgauge.selectorLabels" . | fromYaml)) }}
{{- end }}

{{- /* A label's value: omits digests and long tags. */}}
{{- define "podgauge.version" -}}
{{- default .Chart.AppVersion .Values.image.tag | trunc 63 | trimAll "-_." }}
{{- end }}

{{- /* podgauge.repository is a repository in the registry of the values. A repository begins with a registry if its first part is a host, as container runtimes read it. */}}
{{- define "podgauge.repository" -}}
{{- $repository := .repository }}
{{- with coalesce (default dict .values.global).imageRegistry .values.image.registry }}
{{- $repository = printf "%s/%s" . (regexReplaceAll "^(localhost|[^/]*[.:][^/]*)/" $repository "") }}
{{- end }}
{{- $repository }}
{{- end }}

{{- define "podgauge.image" -}}
{{- $repository := include "podgauge.repository" (dict "values" .Values "repository" .Values.image.repository) }}
{{- if .Values.simulate }}{{ $repository = printf "%s-sim" $repository }}{{ end }}
{{- if .Values.image.digest }}
{{- printf "%s@%s" $repository .Values.image.digest }}
{{- else }}
{{- printf "%s:%s" $repository (default .Chart.AppVersion .Values.image.tag) }}
{{- end }}
{{- end }}

{{- /* Facts derived from several values, as JSON:
  hardware      the node has a driver: nothing is simulated
  privileged    podgauge needs a device that requires a privileged container
  nodes         Allocate returns device nodes, by a value or possibly by a config
  mig, cdi      the feature is on, by a value or by a config
  driverRoot    the folder of the node with the driver is mounted
  controller    a feature needs podgauge-kube's controller
  sidecar       a feature needs podgauge-kube in podgauge's pods; nodeFiles: its files
  configFolder  named configs are mounted; configMap has them, configName selects one
  counters      a counters file of dcgm-exporter is mounted; countersConfigMap has it
  web           there is a web config; webSecret is where */}}
{{- define "podgauge.facts" -}}
{{- $v := .Values }}
{{- $strategies := list (default "" $v.deviceListStrategy) }}
{{- $migs := list (default "" $v.migStrategy) }}
{{- $nodes := ne $v.config.name "" }}
{{- range $name, $text := $v.config.map }}
  {{- $config := fromYaml $text }}
  {{- if hasKey $config "Error" }}
    {{- fail (printf "config.map.%s: %s" $name $config.Error) }}
  {{- end }}
  {{- $flags := kindIs "map" $config.flags | ternary $config.flags dict }}
  {{- $plugin := kindIs "map" $flags.plugin | ternary $flags.plugin dict }}
  {{- $migs = append $migs (default "" $flags.migStrategy) }}
  {{- if $plugin.passDeviceSpecs }}{{ $nodes = true }}{{ end }}
  {{- $said := default list $plugin.deviceListStrategy }}
  {{- $strategies = concat $strategies (kindIs "slice" $said | ternary $said (list $said)) }}
{{- end }}
{{- if not (kindIs "invalid" $v.compatWithCPUManager) }}{{ $nodes = $v.compatWithCPUManager }}{{ end }}
{{- $hardware := not $v.simulate }}
{{- $host := and $hardware (eq $v.driver.injection "host") }}
{{- $cdi := eq (toString $v.cdi.enabled) "auto" | ternary (contains "cdi-" (join "," $strategies)) (eq (toString $v.cdi.enabled) "true") }}
{{- $mig := eq (toString $v.mig.monitor) "auto" | ternary (or (has "single" $migs) (has "mixed" $migs)) (eq (toString $v.mig.monitor) "true") }}
{{- $surge := not (has (toString (default dict $v.updateStrategy.rollingUpdate).maxSurge) (list "" "0" "0%" "<nil>")) }}
{{- $fallback := "" }}
{{- if not $v.config.name }}
  {{- range $v.config.fallbackStrategies }}
    {{- if $fallback }}
    {{- else if and (eq . "named") (hasKey $v.config.map "default") }}
      {{- $fallback = "default" }}
    {{- else if and (eq . "single") (eq (len $v.config.map) 1) }}
      {{- $fallback = keys $v.config.map | first }}
    {{- end }}
  {{- end }}
{{- end }}
{{- $configName := default $fallback $v.config.default }}
{{- $nodeFiles := or (ne $v.kubernetes.configLabel "") $v.kubernetes.adminClaims }}
{{- $web := or (not (empty $v.webConfig.content)) (ne $v.webConfig.existingSecret "") }}
{{- dict
  "hardware" $hardware
  "privileged" (or $host $v.kernelLog.enabled)
  "host" $host
  "nodes" $nodes
  "mig" (and $hardware $mig)
  "cdi" $cdi
  "driverRoot" (and $hardware (or $host $cdi))
  "configFolder" (or (ne $v.config.name "") (ne $configName "") (and (ne $v.kubernetes.configLabel "") (gt (len $v.config.map) 0)))
  "configMap" (default (printf "%s-configs" (include "podgauge.fullname" .)) $v.config.name)
  "configName" $configName
  "counters" (or (ne $v.customMetrics "") (ne $v.customMetricsConfigMap ""))
  "countersConfigMap" (default (printf "%s-dcgm-counters" (include "podgauge.fullname" .)) $v.customMetricsConfigMap)
  "controller" (or $v.kubernetes.events $v.kubernetes.nodeCondition $v.kubernetes.deviceTaints)
  "sidecar" (or $v.kubernetes.pods $nodeFiles)
  "nodeFiles" $nodeFiles
  "surge" $surge
  "web" $web
  "webSecret" (default (printf "%s-web" (include "podgauge.fullname" .)) $v.webConfig.existingSecret)
  | toJson }}
{{- end }}
