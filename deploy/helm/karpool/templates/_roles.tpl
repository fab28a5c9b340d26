{{- /* A role and its binding. Takes root, component, name (of the account), role (its name), rules (YAML) and, for a
Role, namespace. */ -}}
{{- define "karpool.role" -}}
{{- $kind := ternary "Role" "ClusterRole" (hasKey . "namespace") }}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: {{ $kind }}
metadata:
  name: {{ .role }}
  {{- with .namespace }}
  namespace: {{ . }}
  {{- end }}
  labels: {{- include "karpool.labels" . | nindent 4 }}
rules: {{- .rules | nindent 2 }}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: {{ $kind }}Binding
metadata:
  name: {{ .role }}
  {{- with .namespace }}
  namespace: {{ . }}
  {{- end }}
  labels: {{- include "karpool.labels" . | nindent 4 }}
roleRef:
  apiGroup: rbac.authorization.k8s.io
  kind: {{ $kind }}
  name: {{ .role }}
subjects: {{- include "karpool.subjects" . | nindent 2 }}
{{- end }}

{{- define "karpool.rules.events" -}}
- {apiGroups: [""], resources: [events], verbs: [create, patch]}
{{- end }}

{{- /* Takes the lease's name. Creation cannot be restricted to a name. */ -}}
{{- define "karpool.rules.lease" -}}
- {apiGroups: [coordination.k8s.io], resources: [leases], verbs: [create]}
- {apiGroups: [coordination.k8s.io], resources: [leases], resourceNames: [{{ . }}], verbs: [get, update]}
{{- end }}

{{- /* Where nodes can be, by whose cloud it is. */ -}}
{{- define "karpool.rules.nodeClasses" -}}
- {apiGroups: [eks.amazonaws.com], resources: [nodeclasses], verbs: [list, watch]}
- {apiGroups: [karpenter.azure.com], resources: [aksnodeclasses], verbs: [list, watch]}
- {apiGroups: [karpenter.k8s.aws], resources: [ec2nodeclasses], verbs: [list, watch]}
- {apiGroups: [karpenter.k8s.gcp], resources: [gcenodeclasses], verbs: [list, watch]}
{{- end }}

{{- define "karpool.rules.estimator" -}}
{{- $gates := .settings.featureGates }}
{{- $promises := or $gates.SchedulingOvercommitProtection $gates.AllAlpha }}
- {apiGroups: [""], resources: [nodes, pods], verbs: [list, watch]}
{{- if or $gates.ResourceQuotaEstimate $gates.AllAlpha }}
- {apiGroups: [""], resources: [resourcequotas], verbs: [list, watch]}
{{- end }}
{{- $owners := or $promises .nodeCapacityProviders }}
- {apiGroups: [apps], resources: [deployments, statefulsets], verbs: [get{{ if $owners }}, list, watch{{ end }}]}
- {apiGroups: [apps], resources: [replicasets], verbs: [get, list{{ if $owners }}, watch{{ end }}]}
- {apiGroups: [batch], resources: [jobs], verbs: [get{{ if $promises }}, list, watch{{ end }}]}
{{- if .nodeCapacityProviders }}
- {apiGroups: [""], resources: [podtemplates], verbs: [list, watch]}
- {apiGroups: [apps], resources: [daemonsets], verbs: [list, watch]}
- {apiGroups: [autoscaling.x-k8s.io], resources: [capacitybuffers], verbs: [list, watch]}
- {apiGroups: [resource.k8s.io], resources: [deviceclasses, devicetaintrules, resourceclaims, resourceclaimtemplates, resourceslices], verbs: [list, watch]}
{{- end }}
{{- if has "karpenter" .nodeCapacityProviders }}
- {apiGroups: [""], resources: [events], verbs: [list, watch]}
- {apiGroups: [karpenter.sh], resources: [nodeclaims, nodeoverlays, nodepools], verbs: [list, watch]}
{{ include "karpool.rules.nodeClasses" . }}
{{- end }}
{{- with .workloadRules }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{- define "karpool.rules.autoscalerStatus" -}}
- {apiGroups: [""], resources: [configmaps], resourceNames: [cluster-autoscaler-status], verbs: [list, watch]}
{{- end }}

{{- define "karpool.rules.estimatorServices" -}}
- {apiGroups: [""], resources: [services], verbs: [get]}
{{- end }}

{{- define "karpool.rules.scheduler" -}}
- {apiGroups: [cluster.karmada.io], resources: [clusters], verbs: [list, watch]}
- {apiGroups: [work.karmada.io], resources: [clusterresourcebindings, resourcebindings], verbs: [get, list, patch, watch]}
- {apiGroups: [work.karmada.io], resources: [clusterresourcebindings/status, resourcebindings/status], verbs: [patch]}
{{- end }}

{{- define "karpool.rules.descheduler" -}}
- {apiGroups: [work.karmada.io], resources: [clusterresourcebindings, resourcebindings], verbs: [get, list, patch, watch]}
{{- end }}

{{- define "karpool.rules.clusterSummary" -}}
- {apiGroups: [cluster.karmada.io], resources: [clusters], verbs: [list, watch]}
- {apiGroups: [cluster.karmada.io], resources: [clusters/status], verbs: [patch]}
{{- end }}

{{- define "karpool.rules.planning" -}}
- {apiGroups: [""], resources: [events, namespaces, nodes, persistentvolumeclaims, persistentvolumes, pods, podtemplates, resourcequotas], verbs: [list, watch]}
- {apiGroups: [apps], resources: [daemonsets, deployments, replicasets, statefulsets], verbs: [list, watch]}
- {apiGroups: [policy], resources: [poddisruptionbudgets], verbs: [list, watch]}
- {apiGroups: [resource.k8s.io], resources: [deviceclasses, devicetaintrules, resourceclaims, resourceclaimtemplates, resourceslices], verbs: [list, watch]}
- {apiGroups: [storage.k8s.io], resources: [csinodes, storageclasses, volumeattachments], verbs: [list, watch]}
- {apiGroups: [autoscaling.x-k8s.io], resources: [capacitybuffers], verbs: [list, watch]}
- {apiGroups: [karpenter.sh], resources: [nodeclaims, nodeoverlays, nodepools], verbs: [list, watch]}
{{ include "karpool.rules.nodeClasses" . }}
- {apiGroups: [gpu.karpool.dev], resources: [scaleups], verbs: [list, watch]}
- {apiGroups: [tensor-fusion.ai], resources: [gpus], verbs: [list, watch]}
{{- end }}

{{- define "karpool.rules.stopSwitch" -}}
- {apiGroups: [""], resources: [configmaps], resourceNames: [karpool-consolidation], verbs: [list, watch]}
{{- end }}

{{- /* Takes smart (the namespace of smart pods) and records (that of records). */ -}}
{{- define "karpool.rules.consolidating" -}}
- {apiGroups: [""], resources: [namespaces], resourceNames: [{{ .records }}, {{ .smart }}], verbs: [get]}
- {apiGroups: [""], resources: [nodes], verbs: [get, patch]}
- {apiGroups: [karpenter.sh], resources: [nodeclaims], verbs: [delete, get]}
- {apiGroups: [scheduling.k8s.io], resources: [priorityclasses], resourceNames: [karpool-smart-pod], verbs: [get]}
{{- end }}

{{- define "karpool.rules.moveRecords" -}}
- {apiGroups: [""], resources: [configmaps], verbs: [create, delete, get, list, update]}
{{- end }}

{{- define "karpool.rules.gpuScaler" -}}
- {apiGroups: [""], resources: [pods], verbs: [get, list, patch, watch]}
- {apiGroups: [""], resources: [pods/binding], verbs: [create]}
- {apiGroups: [""], resources: [pods/status], verbs: [patch]}
- {apiGroups: [""], resources: [events, namespaces, nodes, persistentvolumeclaims, persistentvolumes], verbs: [list, watch]}
- {apiGroups: [""], resources: [namespaces], resourceNames: [{{ .smart }}], verbs: [get]}
- {apiGroups: [gpu.karpool.dev], resources: [scaleups], verbs: [list, watch]}
{{ include "karpool.rules.nodeClasses" . }}
- {apiGroups: [karpenter.sh], resources: [nodeclaims, nodeoverlays, nodepools], verbs: [list, watch]}
- {apiGroups: [resource.k8s.io], resources: [deviceclasses, devicetaintrules, resourceclaims, resourceclaimtemplates, resourceslices], verbs: [list, watch]}
- {apiGroups: [scheduling.k8s.io], resources: [priorityclasses], resourceNames: [karpool-smart-pod], verbs: [get]}
- {apiGroups: [storage.k8s.io], resources: [csinodes, storageclasses, volumeattachments], verbs: [list, watch]}
- {apiGroups: [tensor-fusion.ai], resources: [gpuresourcequotas, gpus], verbs: [list, watch]}
- {apiGroups: [tensor-fusion.ai], resources: [gpuresourcequotas/status, gpus/status], verbs: [patch]}
{{- end }}

{{- define "karpool.rules.scaleUps" -}}
- {apiGroups: [gpu.karpool.dev], resources: [scaleups], verbs: [create, delete]}
- {apiGroups: [gpu.karpool.dev], resources: [scaleups/status], verbs: [update]}
{{- end }}

{{- /* One that exists already is read; who may read all pods needs no right of its own for that. */ -}}
{{- define "karpool.rules.smartPods" -}}
- {apiGroups: [""], resources: [pods], verbs: [create, delete{{ if .reads }}, get{{ end }}]}
{{- end }}

{{- /* Placeholders of another kind. Takes its plural. */ -}}
{{- define "karpool.rules.templated" -}}
- {apiGroups: [""], resources: [podtemplates], verbs: [create, delete, get]}
- {apiGroups: [autoscaling.x-k8s.io], resources: [{{ . }}], verbs: [create, delete, get, list, watch]}
{{- end }}

{{- define "karpool.rules.reader" -}}
- {apiGroups: [""], resources: [events, namespaces, nodes, persistentvolumeclaims, persistentvolumes, pods, podtemplates, resourcequotas], verbs: [list, watch]}
- {apiGroups: [apps], resources: [daemonsets, deployments, replicasets, statefulsets], verbs: [list, watch]}
- {apiGroups: [batch], resources: [jobs], verbs: [list, watch]}
- {apiGroups: [policy], resources: [poddisruptionbudgets], verbs: [list, watch]}
- {apiGroups: [scheduling.k8s.io], resources: [priorityclasses], verbs: [list, watch]}
- {apiGroups: [storage.k8s.io], resources: [csinodes, storageclasses, volumeattachments], verbs: [list, watch]}
- {apiGroups: [autoscaling.x-k8s.io], resources: [capacitybuffers], verbs: [list, watch]}
- {apiGroups: [karpenter.sh], resources: [nodeclaims, nodeoverlays, nodepools], verbs: [list, watch]}
{{ include "karpool.rules.nodeClasses" . }}
- {apiGroups: [karpenter.kwok.sh], resources: [kwoknodeclasses], verbs: [list, watch]}
- {apiGroups: [cluster.karmada.io], resources: [clusters], verbs: [list, watch]}
- {apiGroups: [work.karmada.io], resources: [clusterresourcebindings, resourcebindings], verbs: [list, watch]}
- {apiGroups: [policy.karmada.io], resources: [clusterpropagationpolicies, propagationpolicies], verbs: [list, watch]}
- {apiGroups: [autoscaling.x-k8s.io], resources: [capacitybuffers], verbs: [list, watch]}
- {apiGroups: [resource.k8s.io], resources: [deviceclasses, devicetaintrules, resourceclaims, resourceclaimtemplates, resourceslices], verbs: [list, watch]}
- {apiGroups: [tensor-fusion.ai], resources: [gpuresourcequotas, gpus], verbs: [list, watch]}
- {apiGroups: [gpu.karpool.dev], resources: [scaleups], verbs: [get, list, watch]}
{{- end }}

{{- /* What the page shows; the switch is looked for by its name. */ -}}
{{- define "karpool.rules.dashboard" -}}
- {apiGroups: [""], resources: [events, namespaces, nodes, persistentvolumeclaims, persistentvolumes, pods, podtemplates, resourcequotas], verbs: [list, watch]}
- {apiGroups: [""], resources: [configmaps], resourceNames: [cluster-autoscaler-status, karpool-consolidation], verbs: [list, watch]}
- {apiGroups: [apps], resources: [daemonsets, deployments, replicasets, statefulsets], verbs: [list, watch]}
- {apiGroups: [batch], resources: [jobs], verbs: [list, watch]}
- {apiGroups: [policy], resources: [poddisruptionbudgets], verbs: [list, watch]}
- {apiGroups: [storage.k8s.io], resources: [csinodes, storageclasses, volumeattachments], verbs: [list, watch]}
- {apiGroups: [autoscaling.x-k8s.io], resources: [capacitybuffers], verbs: [list, watch]}
- {apiGroups: [karpenter.sh], resources: [nodeclaims, nodeoverlays, nodepools], verbs: [list, watch]}
{{ include "karpool.rules.nodeClasses" . }}
- {apiGroups: [resource.k8s.io], resources: [deviceclasses, devicetaintrules, resourceclaims, resourceclaimtemplates, resourceslices], verbs: [list, watch]}
- {apiGroups: [tensor-fusion.ai], resources: [gpus], verbs: [list, watch]}
- {apiGroups: [gpu.karpool.dev], resources: [scaleups], verbs: [list, watch]}
- {apiGroups: [cluster.karmada.io], resources: [clusters], verbs: [list, watch]}
- {apiGroups: [work.karmada.io], resources: [clusterresourcebindings, resourcebindings], verbs: [list, watch]}
{{- end }}

{{- define "karpool.rules.readMoveRecords" -}}
- {apiGroups: [""], resources: [configmaps], verbs: [list, watch]}
{{- end }}
