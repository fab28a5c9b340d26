{{- /* Made from the options of controllers by tools/build_reference.py. */ -}}

{{- define "karpool.options.estimator" -}}
{{- with .plugins }}
- {{ printf "--plugins=%s" (join "," .) | quote }}
{{- end }}
{{- with .nodeCapacityProviders }}
- {{ printf "--node-capacity-providers=%s" (join "," .) | quote }}
{{- end }}
{{- with .region }}
- {{ printf "--region=%s" . | quote }}
{{- end }}
{{- end }}

{{- define "karpool.options.scheduler" -}}
{{- with .schedulerName }}
- {{ printf "--scheduler-name=%s" . | quote }}
{{- end }}
{{- with .maxStaleness }}
- {{ printf "--max-staleness=%s" . | quote }}
{{- end }}
{{- end }}

{{- define "karpool.options.descheduler" -}}
{{- with .interval }}
- {{ printf "--descheduling-interval=%s" . | quote }}
{{- end }}
{{- with .unschedulableThreshold }}
- {{ printf "--unschedulable-threshold=%s" . | quote }}
{{- end }}
{{- with .maxStaleness }}
- {{ printf "--max-staleness=%s" . | quote }}
{{- end }}
{{- end }}

{{- define "karpool.options.clusterSummary" -}}
{{- with .interval }}
- {{ printf "--interval=%s" . | quote }}
{{- end }}
{{- with .withdrawAfter }}
- {{ printf "--withdraw-after=%s" . | quote }}
{{- end }}
{{- with .maxStaleness }}
- {{ printf "--max-staleness=%s" . | quote }}
{{- end }}
{{- end }}

{{- define "karpool.options.consolidator" -}}
{{- with .region }}
- {{ printf "--region=%s" . | quote }}
{{- end }}
{{- with .policy }}
- {{ printf "--policy=%s" . | quote }}
{{- end }}
{{- with .threshold }}
- {{ printf "--threshold=%d" (int .) | quote }}
{{- end }}
{{- if .dryRun }}
- --dry-run
{{- end }}
{{- with .maxMoves }}
- {{ printf "--max-moves=%d" (int .) | quote }}
{{- end }}
{{- with .keepMoves }}
- {{ printf "--keep-moves=%s" . | quote }}
{{- end }}
{{- range .maintenanceWindows }}
- {{ printf "--maintenance-window=%s" . | quote }}
{{- end }}
{{- range .rates }}
- {{ printf "--rate=%s" . | quote }}
{{- end }}
{{- with .maxStaleness }}
- {{ printf "--max-staleness=%s" . | quote }}
{{- end }}
{{- end }}

{{- define "karpool.options.gpuScaler" -}}
{{- with .schedulerName }}
- {{ printf "--scheduler-name=%s" . | quote }}
{{- end }}
{{- with .mode }}
- {{ printf "--mode=%s" . | quote }}
{{- end }}
{{- if .acceptUnenforcedShares }}
- --accept-unenforced-shares
{{- end }}
{{- with .defaultPool }}
- {{ printf "--default-pool=%s" . | quote }}
{{- end }}
{{- with .region }}
- {{ printf "--region=%s" . | quote }}
{{- end }}
{{- with .strategy }}
- {{ printf "--strategy=%s" . | quote }}
{{- end }}
{{- with .backend }}
- {{ printf "--backend=%s" . | quote }}
{{- end }}
{{- with .maxInFlight }}
- {{ printf "--max-in-flight=%d" (int .) | quote }}
{{- end }}
{{- with .maxStaleness }}
- {{ printf "--max-staleness=%s" . | quote }}
{{- end }}
{{- end }}

{{- define "karpool.options.dashboard" -}}
{{- with .region }}
- {{ printf "--region=%s" . | quote }}
{{- end }}
{{- end }}
