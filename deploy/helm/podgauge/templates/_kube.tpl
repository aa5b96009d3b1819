{{- /* Names, labels and image of podgauge-kube. */}}
{{- define "podgauge.kube.fullname" -}}
{{- include "podgauge.fullname" . | trunc 58 | trimSuffix "-" }}-kube
{{- end }}

{{- /* The name of an object of the whole cluster. */}}
{{- define "podgauge.kube.clusterName" -}}
{{- include "podgauge.namespace" . }}-{{ include "podgauge.kube.fullname" . }}
{{- end }}

{{- define "podgauge.kube.serviceAccountName" -}}
{{- default (include "podgauge.kube.fullname" .) .Values.kubernetes.serviceAccountName }}
{{- end }}

{{- /* Not podgauge's name: its DaemonSet, Service and NetworkPolicy must not select the controller's pods. */}}
{{- define "podgauge.kube.selectorLabels" -}}
app.kubernetes.io/name: {{ include "podgauge.name" . | trunc 58 | trimSuffix "-" }}-kube
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "podgauge.kube.labels" -}}
{{- toYaml (mergeOverwrite (include "podgauge.labels" . | fromYaml) (include "podgauge.kube.selectorLabels" . | fromYaml)) }}
{{- end }}

{{- define "podgauge.kube.image" -}}
{{- $image := .Values.kubernetes.image }}
{{- $repository := include "podgauge.repository" (dict "values" .Values "repository" $image.repository) }}
{{- if $image.digest }}
{{- printf "%s@%s" $repository $image.digest }}
{{- else }}
{{- printf "%s:%s" $repository (coalesce $image.tag .Values.image.tag .Chart.AppVersion) }}
{{- end }}
{{- end }}

{{- /* The types of the node conditions, as a JSON list. */}}
{{- define "podgauge.kube.conditionTypes" -}}
{{- $types := dict
  "podgauge" (list "GPUUnhealthy")
  "eks" (list "AcceleratedHardwareReady")
  "aks" (list "GPUMissing" "NVLinkStatusInactive" "XIDErrors") }}
{{- with .Values.kubernetes.condition }}
{{- if .type }}{{ list .type | toJson }}{{ else }}{{ get $types .preset | toJson }}{{ end }}
{{- end }}
{{- end }}

{{- define "podgauge.kube.logArgs" -}}
{{- $args := list }}
{{- with .Values.log.level }}{{ $args = append $args (printf "--log.level=%s" .) }}{{ end }}
{{- with .Values.log.format }}{{ $args = append $args (printf "--log.format=%s" .) }}{{ end }}
{{- $args | toJson }}
{{- end }}

{{- /* Words of a map as key=value,…, or nothing. */}}
{{- define "podgauge.kube.pairs" -}}
{{- $pairs := list }}
{{- range $key, $value := . }}{{ $pairs = append $pairs (printf "%s=%s" $key $value) }}{{ end }}
{{- join "," $pairs }}
{{- end }}

{{- define "podgauge.kube.controllerArgs" -}}
{{- $k := .Values.kubernetes }}
{{- $selector := list }}
{{- range $key, $value := include "podgauge.selectorLabels" . | fromYaml }}{{ $selector = append $selector (printf "%s=%s" $key $value) }}{{ end }}
{{- $args := list "controller"
  (printf "--namespace=%s" (include "podgauge.namespace" .))
  (printf "--selector=%s" (join "," $selector))
  (printf "--lease-namespace=%s" (include "podgauge.namespace" .))
  (printf "--lease-name=%s" (include "podgauge.kube.fullname" .)) }}
{{- if $k.events }}{{ $args = append $args "--events" }}{{ end }}
{{- if $k.nodeCondition }}
{{- $args = append $args (printf "--node-condition=%s" $k.condition.preset) }}
{{- with $k.condition.type }}{{ $args = append $args (printf "--node-condition.type=%s" .) }}{{ end }}
{{- with $k.condition.healthyStatus }}{{ $args = append $args (printf "--node-condition.healthy-status=%s" .) }}{{ end }}
{{- with include "podgauge.kube.pairs" $k.condition.reasons }}{{ $args = append $args (printf "--node-condition.reasons=%s" .) }}{{ end }}
{{- end }}
{{- if $k.deviceTaints }}
{{- $args = append $args "--device-taints" }}
{{- with include "podgauge.kube.pairs" $k.deviceTaintEffects }}{{ $args = append $args (printf "--device-taints.effects=%s" .) }}{{ end }}
{{- end }}
{{- with $k.nodes }}
{{- if ne .scheme "http" }}{{ $args = append $args (printf "--node-scheme=%s" .scheme) }}{{ end }}
{{- if .caSecret }}{{ $args = append $args "--node-ca-file=/etc/podgauge/nodes-ca/ca.crt" }}{{ end }}
{{- with .serverName }}{{ $args = append $args (printf "--node-server-name=%s" .) }}{{ end }}
{{- if .insecureSkipVerify }}{{ $args = append $args "--node-insecure-skip-verify" }}{{ end }}
{{- with .username }}{{ $args = append $args (printf "--node-username=%s" .) }}{{ end }}
{{- if .passwordSecret }}{{ $args = append $args "--node-password-file=/etc/podgauge/nodes-password/password" }}{{ end }}
{{- end }}
{{- concat $args (include "podgauge.kube.logArgs" . | fromJsonArray) | toYaml }}
{{- end }}

{{- define "podgauge.kube.nodeArgs" -}}
{{- $k := .Values.kubernetes }}
{{- $args := list "node" "--dir=/run/podgauge-kube" }}
{{- if $k.pods }}{{ $args = append $args "--pods" }}{{ end }}
{{- with $k.configLabel }}{{ $args = append $args (printf "--config-label=%s" .) }}{{ end }}
{{- if and $k.configLabel (include "podgauge.facts" . | fromJson).configName }}
{{- $args = append $args (printf "--config-default=%s" (include "podgauge.facts" . | fromJson).configName) }}
{{- end }}
{{- if $k.adminClaims }}{{ $args = append $args "--admin-claims" }}{{ end }}
{{- concat $args (include "podgauge.kube.logArgs" . | fromJsonArray) | toJson }}
{{- end }}

{{- /* podgauge-kube in podgauge's pods, as sidecar or, with "once", as init container. Only these containers mount the
token of podgauge's service account. They mount no folder of the node. They run as the uid of podgauge, which opens the socket
without capabilities. It takes (dict "root" . "name" of the container "once" bool). */}}
{{- define "podgauge.kube.nodeContainer" -}}
{{- $args := include "podgauge.kube.nodeArgs" .root | fromJsonArray -}}
- name: {{ .name }}
  image: {{ include "podgauge.kube.image" .root | quote }}
  imagePullPolicy: {{ .root.Values.image.pullPolicy }}
  args:
    {{- .once | ternary (append $args "--once") $args | toYaml | nindent 4 }}
  env:
    - name: NODE_NAME
      valueFrom:
        fieldRef:
          fieldPath: spec.nodeName
  {{- with .root.Values.kubernetes.sidecarResources }}
  resources:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  securityContext:
    allowPrivilegeEscalation: false
    readOnlyRootFilesystem: true
    capabilities:
      drop: [ALL]
  terminationMessagePolicy: FallbackToLogsOnError
  volumeMounts:
    - name: podgauge-kube
      mountPath: /run/podgauge-kube
    - name: podgauge-kube-token
      mountPath: /var/run/secrets/kubernetes.io/serviceaccount
      readOnly: true
{{- end }}

{{- define "podgauge.kube.nodeVolumes" -}}
- name: podgauge-kube
  emptyDir: {}
- name: podgauge-kube-token
  projected:
    defaultMode: 0400
    sources:
      - serviceAccountToken:
          path: token
          expirationSeconds: 3607
      - configMap:
          name: kube-root-ca.crt
          items:
            - key: ca.crt
              path: ca.crt
      - downwardAPI:
          items:
            - path: namespace
              fieldRef:
                fieldPath: metadata.namespace
{{- end }}

{{- /* The outbound rule of a NetworkPolicy to the API server, as JSON. */}}
{{- define "podgauge.kube.apiServerRule" -}}
{{- $rule := dict "ports" list }}
{{- range .Values.networkPolicy.apiServer.ports }}
{{- $_ := set $rule "ports" (append $rule.ports (dict "port" (int .) "protocol" "TCP")) }}
{{- end }}
{{- range .Values.networkPolicy.apiServer.cidrs }}
{{- $_ := set $rule "to" (append ($rule.to | default list) (dict "ipBlock" (dict "cidr" .))) }}
{{- end }}
{{- $rule | toJson }}
{{- end }}

{{- /* The peers of networkPolicy.from and networkPolicy.fromNamespaces, as a JSON list. */}}
{{- define "podgauge.networkPolicy.from" -}}
{{- $from := .Values.networkPolicy.from }}
{{- with .Values.networkPolicy.fromNamespaces }}
{{- $from = prepend $from (dict "namespaceSelector" (dict "matchLabels" .)) }}
{{- end }}
{{- $from | toJson }}
{{- end }}

{{- /* Whether the API server has admission policies; helm template knows its version at most. */}}
{{- define "podgauge.kube.hasPolicies" -}}
{{- if or (.Capabilities.APIVersions.Has "admissionregistration.k8s.io/v1/ValidatingAdmissionPolicy") (semverCompare ">=1.30.0-0" .Capabilities.KubeVersion.Version) -}}
true
{{- end }}
{{- end }}
