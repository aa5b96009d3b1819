{{- /* Mounts from the node. Columns:
  name      of the volume
  at        path in the container
  from      path on the node
  type      of the hostPath: Directory if a missing folder is an error, shown by an event of the pod;
            DirectoryOrCreate if it may appear later
  readOnly  mounted read-only
  late      later mounts on the node propagate */}}
{{- define "podgauge.hostPaths" -}}
{{- $v := .Values }}
{{- $facts := include "podgauge.facts" . | fromJson }}
{{- $rows := list }}
{{- if ne $v.simulate "node" }}
{{- $rows = append $rows (dict "name" "pod-resources" "at" "/var/lib/kubelet/pod-resources" "from" (printf "%s/pod-resources" $v.kubelet.dir) "type" "Directory" "readOnly" true) }}
{{- /* Without the device plugin, podgauge only reads the kubelet's checkpoint. */}}
{{- $rows = append $rows (dict "name" "device-plugins" "at" "/var/lib/kubelet/device-plugins" "from" $v.kubelet.devicePluginDir "type" "Directory" "readOnly" (not $v.devicePlugin.enabled)) }}
{{- if $v.podsAPI.enabled }}
{{- $rows = append $rows (dict "name" "pods-api" "at" "/var/lib/kubelet/pods-api" "from" (printf "%s/pods-api" $v.kubelet.dir) "type" "DirectoryOrCreate" "readOnly" true) }}
{{- end }}
{{- end }}
{{- if $v.state.enabled }}
{{- $rows = append $rows (dict "name" "state" "at" "/var/lib/podgauge" "from" $v.state.dir "type" "DirectoryOrCreate") }}
{{- end }}
{{- if $v.processes.enabled }}
{{- $rows = append $rows (dict "name" "pod-logs" "at" "/var/log/pods" "from" $v.kubelet.podLogsDir "type" "Directory" "readOnly" true) }}
{{- $rows = append $rows (dict "name" "container-logs" "at" "/var/log/containers" "from" "/var/log/containers" "type" "Directory" "readOnly" true) }}
{{- end }}
{{- /* The container's own sysfs lacks the counters of RDMA ports, because it has another network namespace. These two folders have no mounts below,
which readOnly would leave writable. */}}
{{- if and $v.metrics.rdma (ne $v.simulate "node") }}
{{- range list "class" "devices" }}
{{- $rows = append $rows (dict "name" (printf "sys-%s" .) "at" (printf "/host/sys/%s" .) "from" (printf "/sys/%s" .) "type" "Directory" "readOnly" true) }}
{{- end }}
{{- end }}
{{- with $v.jobs.mappingDir }}
{{- $rows = append $rows (dict "name" "jobs" "at" "/var/lib/podgauge-jobs" "from" . "type" "DirectoryOrCreate" "readOnly" true) }}
{{- end }}
{{- if $facts.host }}
{{- $rows = append $rows (dict "name" "dev" "at" "/dev" "from" (printf "%s/dev" (coalesce $v.nvidiaDevRoot $v.nvidiaDriverRoot "/" | trimSuffix "/")) "type" "Directory" "readOnly" true) }}
{{- else if $v.kernelLog.enabled }}
{{- $rows = append $rows (dict "name" "kmsg" "at" "/dev/kmsg" "from" "/dev/kmsg" "type" "CharDevice" "readOnly" true) }}
{{- end }}
{{- if $facts.driverRoot }}
{{- $rows = append $rows (dict "name" "driver-root" "at" "/driver-root" "from" (default "/" $v.nvidiaDriverRoot) "type" "DirectoryOrCreate" "readOnly" true "late" true) }}
{{- end }}
{{- if and $facts.hardware (eq $v.driver.injection "volume-mounts") }}
{{- $rows = append $rows (dict "name" "all-gpus" "at" "/var/run/nvidia-container-devices/all" "from" "/dev/null" "type" "CharDevice" "readOnly" true) }}
{{- end }}
{{- if $facts.cdi }}
{{- $rows = append $rows (dict "name" "cdi" "at" "/var/run/cdi" "from" "/var/run/cdi" "type" "DirectoryOrCreate") }}
{{- end }}
{{- with $v.mps.root }}
{{- $rows = append $rows (dict "name" "mps" "at" "/mps" "from" . "type" "DirectoryOrCreate" "readOnly" true) }}
{{- end }}
{{- $rows | toJson }}
{{- end }}

{{- define "podgauge.volumes" -}}
{{- $facts := include "podgauge.facts" . | fromJson }}
{{- range include "podgauge.hostPaths" . | fromJsonArray }}
- name: {{ .name }}
  hostPath:
    path: {{ .from }}
    type: {{ .type }}
{{- end }}
{{- if $facts.configFolder }}
- name: configs
  configMap:
    name: {{ $facts.configMap }}
{{- end }}
{{- if .Values.retired.enabled }}
- name: retired
  configMap:
    name: {{ default (printf "%s-retired" (include "podgauge.fullname" .)) .Values.retired.configMap }}
    optional: true
{{- end }}
{{- if $facts.counters }}
- name: dcgm-counters
  configMap:
    name: {{ $facts.countersConfigMap }}
    optional: true
{{- end }}
{{- if $facts.web }}
- name: web
  secret:
    secretName: {{ $facts.webSecret }}
    defaultMode: 0400
{{- end }}
{{- with .Values.webConfig.tlsSecret }}
- name: tls
  secret:
    secretName: {{ . }}
    defaultMode: 0400
{{- end }}
{{- if $facts.sidecar }}
{{ include "podgauge.kube.nodeVolumes" . }}
{{- end }}
{{- with .Values.extraVolumes }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{- define "podgauge.volumeMounts" -}}
{{- $facts := include "podgauge.facts" . | fromJson }}
{{- range include "podgauge.hostPaths" . | fromJsonArray }}
- name: {{ .name }}
  mountPath: {{ .at }}
  {{- if .readOnly }}
  readOnly: true
  {{- end }}
  {{- if .late }}
  mountPropagation: HostToContainer
  {{- end }}
{{- end }}
{{- if $facts.configFolder }}
- name: configs
  mountPath: /etc/podgauge/configs
  readOnly: true
{{- end }}
{{- if .Values.retired.enabled }}
- name: retired
  mountPath: /etc/podgauge/retired
  readOnly: true
{{- end }}
{{- if $facts.counters }}
- name: dcgm-counters
  mountPath: /etc/podgauge/dcgm-counters
  readOnly: true
{{- end }}
{{- if $facts.web }}
- name: web
  mountPath: /etc/podgauge/web
  readOnly: true
{{- end }}
{{- if .Values.webConfig.tlsSecret }}
- name: tls
  mountPath: /etc/podgauge/tls
  readOnly: true
{{- end }}
{{- if $facts.sidecar }}
- name: podgauge-kube
  mountPath: /run/podgauge-kube
  readOnly: true
{{- end }}
{{- with .Values.extraVolumeMounts }}
{{ toYaml . }}
{{- end }}
{{- end }}
