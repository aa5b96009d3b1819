{{- /* The daemon's flags without an environment variable. Folders are mounted at podgauge's default paths, so that `kubectl exec … podgauge doctor` finds them too. */}}
{{- define "podgauge.args" -}}
{{- $v := .Values }}
{{- $facts := include "podgauge.facts" . | fromJson }}
{{- $args := list }}
{{- with $v.simulate }}{{ $args = append $args (printf "--simulate=%s" .) }}{{ end }}
{{- if not $v.devicePlugin.enabled }}{{ $args = append $args "--device-plugin=false" }}{{ end }}
{{- if $v.devicePlugin.takeOver }}{{ $args = append $args "--take-over" }}{{ end }}
{{- if $v.state.enabled }}{{ $args = append $args "--state-dir=/var/lib/podgauge" }}{{ end }}
{{- if not $v.kernelLog.enabled }}{{ $args = append $args "--kernel-log=" }}{{ end }}
{{- with $v.health.unhealthyAfter }}{{ $args = append $args (printf "--unhealthy-after=%s" .) }}{{ end }}
{{- with $v.health.driverRestartAfter }}{{ $args = append $args (printf "--driver-restart-after=%s" .) }}{{ end }}
{{- with $v.health.notReadyAfter }}{{ $args = append $args (printf "--not-ready-after=%s" .) }}{{ end }}
{{- if $v.health.fabricManager }}{{ $args = append $args "--health.fabric-manager" }}{{ end }}
{{- with $v.allocations.maxAge }}{{ $args = append $args (printf "--allocations.max-age=%s" .) }}{{ end }}
{{- with $v.incidents.maxAge }}{{ $args = append $args (printf "--incidents.max-age=%s" .) }}{{ end }}
{{- with $v.incidents.maxCount }}{{ $args = append $args (printf "--incidents.max-count=%d" (int .)) }}{{ end }}
{{- if ne (int $v.metrics.port) 9400 }}{{ $args = append $args (printf "--web.listen-address=:%d" (int $v.metrics.port)) }}{{ end }}
{{- if $v.web.metricsOnly }}{{ $args = append $args "--web.metrics-only" }}{{ end }}
{{- range $v.web.allowedHosts }}{{ $args = append $args (printf "--web.allowed-hosts=%s" .) }}{{ end }}
{{- if $facts.web }}
{{- $args = append $args (printf "--web.config.file=/etc/podgauge/web/%s" $v.webConfig.key) }}
{{- end }}
{{- $args = append $args (printf "--web.probe-address=:%d" (int $v.probes.port)) }}
{{- with $v.metrics.set }}{{ $args = append $args (printf "--metrics.set=%s" .) }}{{ end }}
{{- range $v.metrics.include }}{{ $args = append $args (printf "--metrics.include=%s" .) }}{{ end }}
{{- range $v.metrics.exclude }}{{ $args = append $args (printf "--metrics.exclude=%s" .) }}{{ end }}
{{- with $v.metrics.podLabels }}{{ $args = append $args (printf "--metrics.pod-labels=%s" .) }}{{ end }}
{{- if $v.metrics.podUID }}{{ $args = append $args "--metrics.pod-uid" }}{{ end }}
{{- range $v.metrics.labelsAllowlist }}{{ $args = append $args (printf "--metrics.labels-allowlist=%s" .) }}{{ end }}
{{- if $v.jobs.mappingDir }}{{ $args = append $args "--job-mapping-dir=/var/lib/podgauge-jobs" }}{{ end }}
{{- with $v.jobs.label }}{{ $args = append $args (printf "--job-label=%s" .) }}{{ end }}
{{- if $v.metrics.nvlinkLinks }}{{ $args = append $args "--metrics.nvlink-links" }}{{ end }}
{{- if $v.metrics.rdma }}{{ $args = append $args "--metrics.rdma" }}{{ end }}
{{- if $v.metrics.cpu }}{{ $args = append $args "--metrics.cpu" }}{{ end }}
{{- if and $v.metrics.rdma (ne $v.simulate "node") }}{{ $args = append $args "--path.sysfs=/host/sys" }}{{ end }}
{{- with $v.metrics.dcgm }}{{ $args = append $args (eq (toString .) "true" | ternary "--metrics.dcgm" (printf "--metrics.dcgm=%v" .)) }}{{ end }}
{{- if $facts.counters }}{{ $args = append $args "--metrics.dcgm-counters=/etc/podgauge/dcgm-counters/metrics" }}{{ end }}
{{- with $v.metrics.seriesLimit }}{{ $args = append $args (printf "--metrics.series-limit=%d" (int .)) }}{{ end }}
{{- if $v.kubernetes.pods }}{{ $args = append $args "--pods-api-fallback-socket=/run/podgauge-kube/pods-api.sock" }}{{ end }}
{{- if $v.kubernetes.adminClaims }}{{ $args = append $args "--ignore-claims-file=/run/podgauge-kube/admin-claims" }}{{ end }}
{{- with $v.log.level }}{{ $args = append $args (printf "--log.level=%s" .) }}{{ end }}
{{- with $v.log.format }}{{ $args = append $args (printf "--log.format=%s" .) }}{{ end }}
{{- with concat $args $v.extraArgs }}
{{- toYaml . }}
{{- end }}
{{- end }}

{{- /* The device plugin's settings as environment variables, which doctor reads too. Variables override the config, so values without a
setting set none. */}}
{{- define "podgauge.env" -}}
{{- $v := .Values }}
{{- $facts := include "podgauge.facts" . | fromJson }}
- name: NODE_NAME
  valueFrom:
    fieldRef:
      fieldPath: spec.nodeName
- name: POD_NAME
  valueFrom:
    fieldRef:
      fieldPath: metadata.name
{{- if and $facts.hardware (not $facts.host) }}
- name: NVIDIA_VISIBLE_DEVICES
  value: {{ eq $v.driver.injection "volume-mounts" | ternary "/var/run/nvidia-container-devices" "all" }}
- name: NVIDIA_DRIVER_CAPABILITIES
  value: {{ $facts.nodes | ternary "compute,utility" "utility" }}
{{- if $facts.mig }}
- name: NVIDIA_MIG_MONITOR_DEVICES
  value: all
{{- end }}
{{- end }}
{{- if $facts.configFolder }}
- name: CONFIG_FILE
  value: /etc/podgauge/configs
{{- if $v.kubernetes.configLabel }}
- name: CONFIG_NAME_FILE
  value: /run/podgauge-kube/config-name
{{- else }}
{{- with $facts.configName }}
- name: CONFIG_NAME
  value: {{ . | quote }}
{{- end }}
{{- end }}
{{- end }}
{{- $said := list
  (list "MIG_STRATEGY" $v.migStrategy)
  (list "FAIL_ON_INIT_ERROR" $v.failOnInitError)
  (list "DEVICE_LIST_STRATEGY" $v.deviceListStrategy)
  (list "DEVICE_ID_STRATEGY" $v.deviceIDStrategy)
  (list "PASS_DEVICE_SPECS" $v.compatWithCPUManager)
  (list "DEVICE_DISCOVERY_STRATEGY" $v.deviceDiscoveryStrategy)
  (list "NVIDIA_DRIVER_ROOT" $v.nvidiaDriverRoot)
  (list "NVIDIA_DEV_ROOT" $v.nvidiaDevRoot)
  (list "GDRCOPY_ENABLED" $v.gdrcopyEnabled)
  (list "GDS_ENABLED" $v.gdsEnabled)
  (list "MOFED_ENABLED" $v.mofedEnabled)
  (list "SHARED_DEVICES_ALLOCATION_POLICY" $v.sharedDevicesAllocationPolicy)
  (list "PRE_START_CHECK" $v.preStartCheck)
  (list "EXPECTED_GPUS" $v.expectedGPUs)
  (list "INCLUDE_DEVICES" (join "," $v.includeDevices))
  (list "EXCLUDE_DEVICES" (join "," $v.excludeDevices))
  (list "IGNORE_CLAIMS" (join "," $v.claims.ignore))
  (list "RESERVE_CLAIMED_DEVICES" $v.claims.reserveDevices)
  (list "IMEX_CHANNEL_IDS" (join "," $v.imex.channelIDs))
  (list "IMEX_REQUIRED" $v.imex.required)
  (list "MPS_ROOT" $v.mps.root)
  (list "NVIDIA_CDI_HOOK_PATH" $v.cdi.nvidiaHookPath)
  (list "CDI_FEATURE_FLAGS" $v.cdi.featureFlags)
  (list "CDI_DISABLE_HOOKS" $v.cdi.disableHooks)
  (list "CDI_ANNOTATION_PREFIX" $v.cdi.annotationPrefix)
  (list "DP_DISABLE_HEALTHCHECKS" (join "," $v.health.disable))
  (list "DP_ENABLE_HEALTHCHECKS" (join "," $v.health.enable)) }}
{{- range $said }}
{{- $value := toString (last .) }}
{{- if and (not (kindIs "invalid" (last .))) $value }}
- name: {{ first . }}
  value: {{ $value | quote }}
{{- end }}
{{- end }}
{{- with $v.extraEnv }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{- define "podgauge.podSecurityContext" -}}
{{- $own := dict "runAsUser" 0 "runAsGroup" 0 "seccompProfile" (dict "type" "RuntimeDefault") }}
{{- toYaml (mergeOverwrite $own (deepCopy .Values.podSecurityContext)) }}
{{- end }}

{{- /* Kubernetes rejects privileged containers without allowPrivilegeEscalation. */}}
{{- define "podgauge.securityContext" -}}
{{- $facts := include "podgauge.facts" . | fromJson }}
{{- $add := list }}
{{- if $facts.mig }}{{ $add = append $add "SYS_ADMIN" }}{{ end }}
{{- if .Values.kernelLog.enabled }}{{ $add = append $add "SYSLOG" }}{{ end }}
{{- $capabilities := dict "drop" (list "ALL") }}
{{- if $add }}{{ $_ := set $capabilities "add" $add }}{{ end }}
{{- $own := dict "allowPrivilegeEscalation" $facts.privileged "readOnlyRootFilesystem" true "capabilities" $capabilities }}
{{- if $facts.privileged }}{{ $_ := set $own "privileged" true }}{{ end }}
{{- toYaml (mergeOverwrite $own (deepCopy .Values.securityContext)) }}
{{- end }}
