{{- /* A component's settings: those at the top of the values, then its own. Takes root and values. */ -}}
{{- define "karpool.settings" -}}
{{- $top := pick .root.Values "replicas" "logLevel" "extraArgs" "extraEnv" "podAnnotations" "podLabels" "nodeSelector" "tolerations" "affinity" "priorityClassName" "terminationGracePeriodSeconds" "topologySpreadConstraints" "resources" "podSecurityContext" "securityContext" -}}
{{- toYaml (mergeOverwrite (deepCopy $top) .values) -}}
{{- end }}

{{- /* Everything that runs for one component: account, Deployment, Service, budget, policy, monitor.
Takes root, component, name, settings, args (a list), probePort, token (whether the pod talks to this cluster),
secrets (a list of name, secret, path), grpc (a Service port, for estimators), cluster, service, egress (ports).
With prices, a catalogue of the values is given to it. The dashboard has one port for everything, and metrics behind its token: web is its scheme, HTTP or HTTPS, and
scrape (authorization and tlsConfig) how Prometheus gets in. */ -}}
{{- define "karpool.workload" -}}
{{- $root := .root -}}
{{- $c := .settings -}}
{{- $account := include "karpool.account" . }}
apiVersion: apps/v1
kind: Deployment
metadata:
  name: {{ .name }}
  namespace: {{ $root.Release.Namespace }}
  labels: {{- include "karpool.labels" . | nindent 4 }}
spec:
  replicas: {{ $c.replicas }}
  revisionHistoryLimit: 3
  strategy:
    type: RollingUpdate
    rollingUpdate: {maxSurge: 1, maxUnavailable: 0}
  selector:
    matchLabels: {{- include "karpool.selector" . | nindent 6 }}
  template:
    metadata:
      labels:
        {{- with $c.podLabels }}{{ toYaml . | nindent 8 }}{{ end }}
        {{- include "karpool.labels" . | nindent 8 }}
      {{- with $c.podAnnotations }}
      annotations: {{- toYaml . | nindent 8 }}
      {{- end }}
    spec:
      serviceAccountName: {{ $account }}
      automountServiceAccountToken: {{ .token }}
      enableServiceLinks: false
      terminationGracePeriodSeconds: {{ $c.terminationGracePeriodSeconds }}
      {{- with $c.priorityClassName }}
      priorityClassName: {{ . }}
      {{- end }}
      {{- with $root.Values.imagePullSecrets }}
      imagePullSecrets: {{- toYaml . | nindent 8 }}
      {{- end }}
      securityContext: {{- toYaml $c.podSecurityContext | nindent 8 }}
      containers:
        - name: karpool
          image: {{ include "karpool.image" $root | quote }}
          imagePullPolicy: {{ $root.Values.image.pullPolicy }}
          args:
            {{- $catalogue := and .prices $root.Values.catalogue.configMapName }}
            {{- $known := ternary (list (printf "--catalogue=/etc/karpool/catalogue/%s" $root.Values.catalogue.key)) list (not (not $catalogue)) }}
            {{- $contract := and .prices $root.Values.contract.configMapName }}
            {{- $contracted := ternary (list (printf "--contract=/etc/karpool/contract/%s" $root.Values.contract.key)) list (not (not $contract)) }}
            {{- range concat .args $known $contracted $c.extraArgs }}
            - {{ . | quote }}
            {{- end }}
          {{- with $c.extraEnv }}
          env: {{- toYaml . | nindent 12 }}
          {{- end }}
          ports:
            {{- if .grpc }}
            - {name: grpc, containerPort: 10352, protocol: TCP}
            {{- end }}
            {{- if .web }}
            - {name: web, containerPort: {{ .probePort }}, protocol: TCP}
            {{- else }}
            - {name: metrics, containerPort: 8080, protocol: TCP}
            - {name: probes, containerPort: {{ .probePort }}, protocol: TCP}
            {{- end }}
          {{- $probe := ternary "port: probes" (printf "port: web, scheme: %s" .web) (not .web) }}
          livenessProbe:
            httpGet: {path: /livez, {{ $probe }}}
            periodSeconds: 10
            timeoutSeconds: 5
            failureThreshold: 6
          readinessProbe:
            httpGet: {path: /readyz, {{ $probe }}}
            periodSeconds: 5
            timeoutSeconds: 3
          startupProbe:
            httpGet: {path: /livez, {{ $probe }}}
            periodSeconds: 2
            failureThreshold: 30
          resources: {{- toYaml $c.resources | nindent 12 }}
          securityContext: {{- toYaml $c.securityContext | nindent 12 }}
          volumeMounts:
            - {name: tmp, mountPath: /tmp}
            {{- if $catalogue }}
            - {name: catalogue, mountPath: /etc/karpool/catalogue, readOnly: true}
            {{- end }}
            {{- if $contract }}
            - {name: contract, mountPath: /etc/karpool/contract, readOnly: true}
            {{- end }}
            {{- $place := and $contract $root.Values.contract.kubeconfig.secretName }}
            {{- if $place }}
            - {name: contract-place, mountPath: /etc/karpool/contract-place, readOnly: true}
            {{- end }}
            {{- $prometheus := and $contract $root.Values.contract.prometheus.secretName }}
            {{- if $prometheus }}
            - {name: prometheus, mountPath: /etc/karpool/prometheus, readOnly: true}
            {{- end }}
            {{- range .secrets }}
            - {name: {{ .name }}, mountPath: {{ .path }}, readOnly: true}
            {{- end }}
      volumes:
        - name: tmp
          emptyDir: {sizeLimit: 64Mi}
        {{- with $catalogue }}
        - name: catalogue
          configMap: {name: {{ . }}}
        {{- end }}
        {{- with $contract }}
        - name: contract
          configMap: {name: {{ . }}}
        {{- end }}
        {{- with $place }}
        - name: contract-place
          secret: {secretName: {{ . }}, defaultMode: 0440}
        {{- end }}
        {{- with $prometheus }}
        - name: prometheus
          secret: {secretName: {{ . }}, defaultMode: 0440}
        {{- end }}
        {{- range .secrets }}
        - name: {{ .name }}
          secret: {secretName: {{ .secret }}, defaultMode: 0440}
        {{- end }}
      {{- with $c.nodeSelector }}
      nodeSelector: {{- toYaml . | nindent 8 }}
      {{- end }}
      {{- with $c.tolerations }}
      tolerations: {{- toYaml . | nindent 8 }}
      {{- end }}
      {{- with $c.affinity }}
      affinity: {{- toYaml . | nindent 8 }}
      {{- end }}
      {{- if $c.topologySpreadConstraints }}
      topologySpreadConstraints:
        {{- $selector := dict "labelSelector" (dict "matchLabels" (include "karpool.selector" . | fromYaml)) }}
        {{- range $c.topologySpreadConstraints }}
        - {{- toYaml (merge (deepCopy .) $selector) | nindent 10 }}
        {{- end }}
      {{- end }}
---
apiVersion: v1
kind: Service
metadata:
  name: {{ default .name .service.name }}
  namespace: {{ $root.Release.Namespace }}
  labels: {{- include "karpool.labels" . | nindent 4 }}
  {{- with .service.annotations }}
  annotations: {{- toYaml . | nindent 4 }}
  {{- end }}
spec:
  {{- if or .grpc .web }}
  type: {{ .service.type }}
  {{- else }}
  clusterIP: None
  {{- end }}
  selector: {{- include "karpool.selector" . | nindent 4 }}
  ports:
    {{- if .grpc }}
    - {name: grpc, port: 10352, targetPort: grpc, protocol: TCP}
    {{- end }}
    {{- if .web }}
    - {name: web, port: {{ ternary 443 80 (eq .web "HTTPS") }}, targetPort: web, protocol: TCP}
    {{- else }}
    - {name: metrics, port: 8080, targetPort: metrics, protocol: TCP}
    {{- end }}
{{- if and $root.Values.podDisruptionBudget.enabled (gt (int $c.replicas) 1) }}
---
apiVersion: policy/v1
kind: PodDisruptionBudget
metadata:
  name: {{ .name }}
  namespace: {{ $root.Release.Namespace }}
  labels: {{- include "karpool.labels" . | nindent 4 }}
spec:
  maxUnavailable: {{ $root.Values.podDisruptionBudget.maxUnavailable }}
  selector:
    matchLabels: {{- include "karpool.selector" . | nindent 6 }}
{{- end }}
{{- with $root.Values.networkPolicy }}
{{- if .enabled }}
---
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata:
  name: {{ $.name }}
  namespace: {{ $root.Release.Namespace }}
  labels: {{- include "karpool.labels" $ | nindent 4 }}
spec:
  podSelector:
    matchLabels: {{- include "karpool.selector" $ | nindent 6 }}
  policyTypes: [Ingress, Egress]
  ingress:
    {{- if $.web }}
    - ports:
        - {port: web, protocol: TCP}
      from:
        {{- toYaml (default (list (dict "podSelector" dict)) .dashboardFrom) | nindent 8 }}
        {{- if $root.Values.serviceMonitor.enabled }}
        {{- toYaml (default (list (dict "namespaceSelector" dict)) .metricsFrom) | nindent 8 }}
        {{- end }}
    {{- else }}
    - ports:
        - {port: metrics, protocol: TCP}
      from: {{- toYaml (default (list (dict "namespaceSelector" dict)) .metricsFrom) | nindent 8 }}
    {{- end }}
    {{- if $.grpc }}
    - ports:
        - {port: grpc, protocol: TCP}
      from: {{- toYaml (default (list (dict "podSelector" dict)) .grpcFrom) | nindent 8 }}
    {{- end }}
  egress:
    - ports:
        - {port: 53, protocol: UDP}
        - {port: 53, protocol: TCP}
    - ports:
        {{- range concat .apiServerPorts $.egress }}
        - {port: {{ . }}, protocol: TCP}
        {{- end }}
{{- end }}
{{- end }}
{{- if $root.Values.serviceMonitor.enabled }}
---
apiVersion: monitoring.coreos.com/v1
kind: ServiceMonitor
metadata:
  name: {{ .name }}
  namespace: {{ $root.Release.Namespace }}
  labels:
    {{- include "karpool.labels" . | nindent 4 }}
    {{- with $root.Values.serviceMonitor.labels }}{{ toYaml . | nindent 4 }}{{ end }}
spec:
  selector:
    matchLabels: {{- include "karpool.selector" . | nindent 6 }}
  endpoints:
    - port: {{ ternary "web" "metrics" (not (not .web)) }}
      interval: {{ $root.Values.serviceMonitor.interval }}
      {{- if .web }}
      scheme: {{ lower .web }}
      {{- toYaml .scrape | nindent 6 }}
      {{- end }}
{{- end }}
{{- end }}

{{- define "karpool.serviceAccount" -}}
{{- if .root.Values.serviceAccount.create }}
---
apiVersion: v1
kind: ServiceAccount
metadata:
  name: {{ include "karpool.account" . }}
  namespace: {{ .root.Release.Namespace }}
  labels: {{- include "karpool.labels" (omit . "cluster") | nindent 4 }}
  {{- with .root.Values.serviceAccount.annotations }}
  annotations: {{- toYaml . | nindent 4 }}
  {{- end }}
automountServiceAccountToken: false
{{- end }}
{{- end }}
