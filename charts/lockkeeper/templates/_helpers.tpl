{{- define "lockkeeper.name" -}}
{{- .Values.nameOverride | default .Chart.Name | trunc 63 | trimSuffix "-" -}}
{{- end -}}

{{/* One name for every object. A release called lockkeeper gives exactly that. */}}
{{- define "lockkeeper.fullname" -}}
{{- $name := include "lockkeeper.name" . -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 63 | trimSuffix "-" -}}
{{- else if contains $name .Release.Name -}}
{{- .Release.Name | trunc 63 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name $name | trunc 63 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{- define "lockkeeper.serviceAccountName" -}}
{{- if .Values.serviceAccount.create -}}
{{- .Values.serviceAccount.name | default (include "lockkeeper.fullname" .) -}}
{{- else -}}
{{- .Values.serviceAccount.name | default "default" -}}
{{- end -}}
{{- end -}}

{{/* What a Deployment selects by can't be changed later, so it is kept small. */}}
{{- define "lockkeeper.selectorLabels" -}}
app.kubernetes.io/name: {{ include "lockkeeper.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "lockkeeper.labels" -}}
{{ include "lockkeeper.selectorLabels" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" | trunc 63 | trimSuffix "-" }}
{{- with .Values.commonLabels }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{/* Labels and annotations of the resource definitions, which dev/generate calls for. */}}
{{- define "lockkeeper.crdMetadata" -}}
labels:
  {{- include "lockkeeper.labels" . | nindent 2 }}
{{- if or .Values.crds.keep .Values.crds.annotations }}
annotations:
  {{- if .Values.crds.keep }}
  helm.sh/resource-policy: keep
  {{- end }}
  {{- with .Values.crds.annotations }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
{{- end }}
{{- end -}}

{{/* Whether to render a kind that the cluster may not know: [context, kind, renderMode]. */}}
{{- define "lockkeeper.isKnown" -}}
{{- $kind := index . 1 -}}
{{- $mode := index . 2 -}}
{{- if eq $mode "alwaysRender" -}}
true
{{- else if (index . 0).Capabilities.APIVersions.Has (printf "monitoring.coreos.com/v1/%s" $kind) -}}
true
{{- else if eq $mode "failIfMissing" -}}
{{- fail (printf "the cluster does not know the kind %s (monitoring.coreos.com/v1): install the Prometheus operator, or set renderMode to skipIfMissing" $kind) -}}
{{- end -}}
{{- end -}}

{{/* Which namespaces a policy is for: those that the operator watches. */}}
{{- define "lockkeeper.policyNamespaces" -}}
{{- with .Values.watchNamespaces }}
matchResources:
  namespaceSelector:
    matchExpressions:
      - key: kubernetes.io/metadata.name
        operator: In
        values: {{ toJson . }}
{{- end }}
{{- end -}}

{{/* User and groups of the pod, unless the cluster chooses them. */}}
{{- define "lockkeeper.user" -}}
{{- $adapt := .Values.global.compatibility.openshift.adaptSecurityContext -}}
{{- $openshift := .Capabilities.APIVersions.Has "security.openshift.io/v1" -}}
{{- if not (or (eq $adapt "force") (and (eq $adapt "auto") $openshift)) -}}
runAsUser: 65532
runAsGroup: 65532
# Mounted certificates are readable by this group.
fsGroup: 65532
{{- end -}}
{{- end -}}
