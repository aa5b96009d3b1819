{{- /* Labels of nodes with a GPU: of node-feature-discovery by vendor (as NVIDIA's charts configure it) and by class and vendor (as it
is by default: 0300 is a display, 0302 a 3D controller), and the one that NVIDIA's components and administrators set. */}}
{{- define "podgauge.affinity" -}}
{{- if .Values.affinity }}
{{- toYaml .Values.affinity }}
{{- else if and .Values.gpuNodesOnly (not .Values.simulate) -}}
nodeAffinity:
  requiredDuringSchedulingIgnoredDuringExecution:
    nodeSelectorTerms:
    {{- range list "feature.node.kubernetes.io/pci-10de.present" "feature.node.kubernetes.io/pci-0302_10de.present" "feature.node.kubernetes.io/pci-0300_10de.present" "nvidia.com/gpu.present" }}
      - matchExpressions:
          - key: {{ . }}
            operator: In
            values: ["true"]
    {{- end }}
{{- end }}
{{- end }}
