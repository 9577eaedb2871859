{{- define "aaa.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 40 | trimSuffix "-" -}}
{{- else if contains "aaa" .Release.Name -}}
{{- .Release.Name | trunc 40 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-aaa" .Release.Name | trunc 40 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{/* The labels of an object; given a list: the root, the name of what it belongs to. */}}
{{- define "aaa.labels.of" -}}
app.kubernetes.io/name: {{ index . 1 }}
{{ include "aaa.labels" (index . 0) }}
{{- end -}}

{{- define "aaa.labels" -}}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
app.kubernetes.io/part-of: aaa
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
{{- end -}}

{{- define "aaa.operator.selector" -}}
app.kubernetes.io/name: aaa-operator
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "aaa.redis.selector" -}}
app.kubernetes.io/name: aaa-redis
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{/* An image by its digest, or by its tag. Given a list: the image's values, the registry, the tag without one. */}}
{{- define "aaa.image" -}}
{{- $image := index . 0 -}}
{{- $registry := index . 1 -}}
{{- $name := $image.repository -}}
{{- if $registry -}}{{- $name = printf "%s/%s" (trimSuffix "/" $registry) $name -}}{{- end -}}
{{- if $image.digest -}}{{ $name }}@{{ $image.digest }}{{- else -}}{{ $name }}:{{ $image.tag | default (index . 2) }}{{- end -}}
{{- end -}}

{{- define "aaa.image.worker" -}}
{{ include "aaa.image" (list .Values.images.worker .Values.images.registry .Chart.AppVersion) }}
{{- end -}}

{{- define "aaa.image.operator" -}}
{{ include "aaa.image" (list .Values.images.operator .Values.images.registry .Chart.AppVersion) }}
{{- end -}}

{{/* The watched namespaces, as a JSON list; empty for the whole cluster. */}}
{{- define "aaa.namespaces" -}}
{{- if .Values.watch.cluster -}}
[]
{{- else -}}
{{ .Values.watch.namespaces | default (list .Release.Namespace) | uniq | toJson }}
{{- end -}}
{{- end -}}

{{/* The Secret with the address of the store that namespaces share; empty where they bring their own. */}}
{{- define "aaa.store.shared" -}}
{{- $store := .Values.store -}}
{{- if $store.sharedSecretName -}}
{{- $store.sharedSecretName -}}
{{- else if $store.userPerNamespace -}}
{{- if or (and .Values.redis.enabled (not .Values.redis.existingSecret)) (hasPrefix "redis" $store.url) -}}
{{- printf "%s-shared-store" (include "aaa.fullname" .) -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{- define "aaa.pull" -}}
{{- with .Values.images.pullSecrets }}
imagePullSecrets:
{{- range . }}
  - name: {{ . }}
{{- end }}
{{- end }}
{{- end -}}

{{/* What Pod Security's restricted profile asks of a pod, and of a container. */}}
{{- define "aaa.restricted.pod" -}}
runAsNonRoot: true
runAsUser: 10001
runAsGroup: 10001
fsGroup: 10001
seccompProfile:
  type: RuntimeDefault
{{- end -}}

{{- define "aaa.restricted.container" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities:
  drop: [ALL]
{{- end -}}

{{/* Values that cannot stand together, each in one sentence that says what to do. */}}
{{- define "aaa.check" -}}
{{- if and .Values.redis.enabled .Values.store.url -}}
{{- fail "store.url names a store of yours, and redis.enabled asks for one in the cluster: set redis.enabled=false, or leave store.url empty" -}}
{{- end -}}
{{- if and .Values.store.sharedSecretName (or .Values.store.url (not .Values.store.userPerNamespace)) -}}
{{- fail "store.sharedSecretName holds the address of a store for all namespaces: leave store.url empty, and store.userPerNamespace true" -}}
{{- end -}}
{{- if and .Values.store.sharedSecretName .Values.redis.enabled (not .Values.redis.existingSecret) -}}
{{- fail "store.sharedSecretName names a store of yours, and redis.enabled asks for one in the cluster: set redis.enabled=false or redis.existingSecret, or leave store.sharedSecretName empty" -}}
{{- end -}}
{{- if and .Values.store.caCertificates (not (regexMatch "^(rediss|postgres)" .Values.store.url)) -}}
{{- fail "store.caCertificates are for a store.url of rediss:// or postgresql://; beside a Secret of yours, put them into it as ca.crt" -}}
{{- end -}}
{{- if eq (include "aaa.store.shared" .) .Values.store.secretName -}}
{{- fail "store.secretName is the namespaces' Secret and must not be the shared store's: choose another name" -}}
{{- end -}}
{{- if and .Values.watch.cluster .Values.watch.namespaces -}}
{{- fail "watch.cluster watches every namespace, and watch.namespaces some: leave one of them out" -}}
{{- end -}}
{{- if gt (int .Values.workers.minReplicas) (int .Values.workers.maxReplicas) -}}
{{- fail "workers.minReplicas is above workers.maxReplicas" -}}
{{- end -}}
{{- $free := list "AAA_OPERATOR_RETRY_S" "AAA_OPERATOR_RETRY_MAX_S" "AAA_OPERATOR_HEARTBEAT_S" "AAA_OPERATOR_WATCH_LIMIT_S" -}}
{{- range .Values.operator.env -}}
{{- if and (hasPrefix "AAA_OPERATOR_" .name) (not (has .name $free)) -}}
{{- fail (printf "operator.env sets %s, which is set by a value of its own: set that" .name) -}}
{{- end -}}
{{- end -}}
{{- end -}}
