{{- define "karpool.fullname" -}}
{{- $name := default .Chart.Name .Values.nameOverride -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 40 | trimSuffix "-" -}}
{{- else if contains $name .Release.Name -}}
{{- .Release.Name | trunc 40 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name $name | trunc 40 | trimSuffix "-" -}}
{{- end -}}
{{- end }}

{{- /* Labels that choose the pods of a component; they never change. Takes root, component and, for estimators, cluster. */ -}}
{{- define "karpool.selector" -}}
app.kubernetes.io/name: {{ default .root.Chart.Name .root.Values.nameOverride }}
app.kubernetes.io/instance: {{ .root.Release.Name }}
app.kubernetes.io/component: {{ .component }}
{{- with .cluster }}
karpool.dev/cluster: {{ . | quote }}
{{- end }}
{{- end }}

{{- define "karpool.labels" -}}
{{ include "karpool.selector" . }}
app.kubernetes.io/version: {{ .root.Chart.AppVersion | quote }}
app.kubernetes.io/part-of: karpool
app.kubernetes.io/managed-by: {{ .root.Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .root.Chart.Name .root.Chart.Version | replace "+" "_" }}
{{- end }}

{{- define "karpool.image" -}}
{{- $image := .Values.image -}}
{{- if $image.digest -}}
{{ $image.repository }}@{{ $image.digest }}
{{- else -}}
{{ $image.repository }}:{{ default .Chart.AppVersion $image.tag }}
{{- end -}}
{{- end }}

{{- define "karpool.account" -}}
{{- default (default .name .account) .root.Values.serviceAccount.name -}}
{{- end }}

{{- /* Who a role is given to. Takes root and name. */ -}}
{{- define "karpool.subjects" -}}
{{- if and (eq .root.Values.render "access") .root.Values.rbac.subjects }}
{{- toYaml .root.Values.rbac.subjects }}
{{- else -}}
- kind: ServiceAccount
  name: {{ include "karpool.account" . }}
  namespace: {{ .root.Release.Namespace }}
{{- end }}
{{- end }}

{{- /* Whether a component's access belongs into this render. Takes root and, if it has one, kubeconfig. */ -}}
{{- define "karpool.access" -}}
{{- if and .root.Values.rbac.create (or (eq .root.Values.render "access") (not .kubeconfig)) }}true{{ end -}}
{{- end }}

{{- define "karpool.gates" -}}
{{- $pairs := list -}}
{{- range $name, $on := . }}{{ $pairs = append $pairs (printf "%s=%t" $name $on) }}{{ end -}}
{{- join "," $pairs -}}
{{- end }}

{{- define "karpool.serverCertificate" -}}
{{- $tls := .Values.estimator.tls -}}
{{- if $tls.secretName }}{{ $tls.secretName }}{{ else if .Values.certManager.enabled }}{{ include "karpool.fullname" . }}-estimator-tls{{ end -}}
{{- end }}

{{- define "karpool.dashboardCertificate" -}}
{{- $tls := .Values.dashboard.tls -}}
{{- if $tls.secretName }}{{ $tls.secretName }}{{ else if .Values.certManager.enabled }}{{ include "karpool.fullname" . }}-dashboard-tls{{ end -}}
{{- end }}

{{- /* The Secret of a scheduler's client certificate. Takes root, tls and where, for messages. */ -}}
{{- define "karpool.clientCertificate" -}}
{{- if .tls.insecure -}}
{{- else if .tls.secretName }}{{ .tls.secretName }}
{{- else if .root.Values.certManager.enabled }}{{ include "karpool.fullname" .root }}-estimator-client-tls
{{- else }}{{ fail (printf "%s.secretName is needed: a Secret with tls.crt, tls.key and ca.crt; or set certManager.enabled" .where) }}
{{- end -}}
{{- end }}
