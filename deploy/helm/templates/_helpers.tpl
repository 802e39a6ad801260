{{- define "facecrawl.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 50 | trimSuffix "-" -}}
{{- end -}}

{{- define "facecrawl.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 50 | trimSuffix "-" -}}
{{- else if contains (include "facecrawl.name" .) .Release.Name -}}
{{- .Release.Name | trunc 50 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name (include "facecrawl.name" .) | trunc 50 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{- define "facecrawl.instanceLabels" -}}
app.kubernetes.io/name: {{ include "facecrawl.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{/* The argument is a dict with `root` and `component`. */}}
{{- define "facecrawl.selectorLabels" -}}
{{ include "facecrawl.instanceLabels" .root }}
app.kubernetes.io/component: {{ .component }}
{{- end -}}

{{- define "facecrawl.labels" -}}
{{ include "facecrawl.selectorLabels" . }}
app.kubernetes.io/version: {{ .root.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .root.Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .root.Chart.Name .root.Chart.Version | replace "+" "_" }}
{{- end -}}

{{- define "facecrawl.image" -}}
{{- with .Values.image -}}
{{- if .digest -}}
{{ .repository }}@{{ .digest }}
{{- else -}}
{{ .repository }}:{{ default $.Chart.AppVersion .tag }}
{{- end -}}
{{- end -}}
{{- end -}}

{{- define "facecrawl.serviceAccountName" -}}
{{- $default := ternary (include "facecrawl.fullname" .) "default" .Values.serviceAccount.create -}}
{{- default $default .Values.serviceAccount.name -}}
{{- end -}}

{{/* The settings of a component: `config`, then the `config` of the component. Without keys, the
     names of the Service are added to PUBLIC_HOSTS, because the program refuses other names. */}}
{{- define "facecrawl.settings" -}}
{{- $root := .root -}}
{{- $settings := mergeOverwrite (deepCopy $root.Values.config) (deepCopy (index $root.Values .component).config) -}}
{{- if ne (toString $settings.AUTH) "keys" -}}
{{- $name := include "facecrawl.fullname" $root -}}
{{- $host := printf "%s.%s" $name $root.Release.Namespace -}}
{{- $hosts := list $name $host (printf "%s.svc" $host) (printf "%s.svc.cluster.local" $host) -}}
{{- with $settings.PUBLIC_HOSTS -}}{{- $hosts = append $hosts . -}}{{- end -}}
{{- $_ := set $settings "PUBLIC_HOSTS" (join "," $hosts) -}}
{{- end -}}
{{- range $name, $value := $settings }}
{{- if not (kindIs "invalid" $value) }}
{{- /* toJson writes large numbers without an exponent. */}}
{{- $name }}: {{ (kindIs "string" $value | ternary $value (toJson $value)) | quote }}
{{ end -}}
{{- end -}}
{{- end -}}

{{/* The variables that refer to Secrets. */}}
{{- define "facecrawl.secretEnv" -}}
{{- range $name, $secret := .Values.secrets }}
{{- with $secret }}
- name: {{ $name }}
  valueFrom:
    secretKeyRef:
      name: {{ .name }}
      key: {{ default $name .key }}
{{- end }}
{{- end }}
{{- end -}}

{{- define "facecrawl.containerSecurityContext" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities:
  drop: [ALL]
{{- end -}}

{{/* The template of the pods of a component. The argument is a dict with `root`, `component`,
     `command`, and `port` with `name`, `number` and `variable`. */}}
{{- define "facecrawl.podTemplate" -}}
{{- $root := .root -}}
{{- $values := index $root.Values .component -}}
metadata:
  annotations:
    # Starts new pods when a setting changes.
    checksum/config: {{ include "facecrawl.settings" . | sha256sum }}
    {{- with $values.podAnnotations }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
  labels:
    {{- include "facecrawl.labels" . | nindent 4 }}
    {{- with $values.podLabels }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
spec:
  serviceAccountName: {{ include "facecrawl.serviceAccountName" $root }}
  automountServiceAccountToken: false
  # Variables such as QDRANT_PORT of a Service with this name could be taken for settings.
  enableServiceLinks: false
  {{- with $root.Values.image.pullSecrets }}
  imagePullSecrets:
    {{- range . }}
    - name: {{ . }}
    {{- end }}
  {{- end }}
  {{- with $values.priorityClassName }}
  priorityClassName: {{ . }}
  {{- end }}
  {{- with $values.runtimeClassName }}
  runtimeClassName: {{ . }}
  {{- end }}
  # Longer than DRAIN_SECONDS, so that requests and jobs end or are released.
  terminationGracePeriodSeconds: {{ add $root.Values.drainSeconds $values.preStopSeconds 10 }}
  securityContext:
    {{- toYaml $root.Values.podSecurityContext | nindent 4 }}
  containers:
    - name: facecrawl
      image: {{ include "facecrawl.image" $root | quote }}
      imagePullPolicy: {{ $root.Values.image.pullPolicy }}
      args: [{{ .command }}]
      ports:
        - name: {{ .port.name }}
          containerPort: {{ .port.number }}
      envFrom:
        - configMapRef:
            name: {{ include "facecrawl.fullname" $root }}-{{ .component }}
      env:
        - name: {{ .port.variable }}
          value: {{ .port.number | quote }}
        - name: DRAIN_SECONDS
          value: {{ $root.Values.drainSeconds | toJson | quote }}
        - name: DATA_DIR
          value: /data
        - name: MODELS_DIR
          value: /models
        {{- include "facecrawl.secretEnv" $root | trim | nindent 8 }}
        {{- with $values.extraEnv }}
        {{- toYaml . | nindent 8 }}
        {{- end }}
      # The program listens at once, and responds when it has migrated and loaded the models.
      startupProbe:
        httpGet: {path: /health/live, port: {{ .port.name }}}
        periodSeconds: 5
        timeoutSeconds: 5
        failureThreshold: {{ div (add $values.startupSeconds 4) 5 }}
      livenessProbe:
        httpGet: {path: /health/live, port: {{ .port.name }}}
        periodSeconds: 10
        timeoutSeconds: 10
        failureThreshold: 6
      readinessProbe:
        httpGet: {path: /health/ready, port: {{ .port.name }}}
        periodSeconds: 5
        timeoutSeconds: 5
        failureThreshold: 2
      {{- if gt (int $values.preStopSeconds) 0 }}
      lifecycle:
        preStop:
          exec:
            command: [sleep, {{ $values.preStopSeconds | toJson | quote }}]
      {{- end }}
      securityContext:
        {{- include "facecrawl.containerSecurityContext" . | nindent 8 }}
      resources:
        {{- toYaml $values.resources | nindent 8 }}
      volumeMounts:
        - name: tmp
          mountPath: /tmp
        - name: data
          mountPath: /data
        - name: models
          mountPath: /models
        {{- if $root.Values.blobs.existingClaim }}
        - name: blobs
          mountPath: /blobs
        {{- end }}
        {{- with $values.extraVolumeMounts }}
        {{- toYaml . | nindent 8 }}
        {{- end }}
  volumes:
    - name: tmp
      emptyDir: {sizeLimit: 1Gi}
    - name: data
      {{- default (dict "emptyDir" (dict "sizeLimit" "50Gi")) $root.Values.data.volume | toYaml | nindent 6 }}
    - name: models
      {{- default (dict "emptyDir" (dict "sizeLimit" "4Gi")) $root.Values.models.volume | toYaml | nindent 6 }}
    {{- with $root.Values.blobs.existingClaim }}
    - name: blobs
      persistentVolumeClaim:
        claimName: {{ . }}
    {{- end }}
    {{- with $values.extraVolumes }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
  {{- with $values.nodeSelector }}
  nodeSelector:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with $values.tolerations }}
  tolerations:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with $values.affinity }}
  affinity:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  topologySpreadConstraints:
    {{- if $values.topologySpreadConstraints }}
    {{- toYaml $values.topologySpreadConstraints | nindent 4 }}
    {{- else }}
    {{- range list "kubernetes.io/hostname" "topology.kubernetes.io/zone" }}
    - maxSkew: 1
      topologyKey: {{ . }}
      whenUnsatisfiable: ScheduleAnyway
      labelSelector:
        matchLabels:
          {{- include "facecrawl.selectorLabels" $ | nindent 10 }}
    {{- end }}
    {{- end }}
{{- end -}}
