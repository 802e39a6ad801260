{{/* Refuses values that the schema cannot refuse, with a message that names the value. */}}
{{- define "facecrawl.check" -}}
{{- $values := .Values -}}
{{- $config := $values.config -}}

{{- if not $values.image.repository -}}
{{- fail "image.repository is not set; set it to the image that you built and pushed, without a tag" -}}
{{- end -}}

{{- range $name, $secret := $values.secrets -}}
{{- if and (kindIs "map" $secret) (not $secret.name) -}}
{{- fail (printf "secrets.%s.name is not set; set it to the name of an existing Secret" $name) -}}
{{- end -}}
{{- end -}}
{{- if not $values.secrets.DATABASE_URL -}}
{{- fail "secrets.DATABASE_URL is not set; create a Secret with the URL of the Postgres database, and set secrets.DATABASE_URL.name to its name" -}}
{{- end -}}

{{- $blobs := toString $config.BLOB_STORE_URL -}}
{{- if not $config.BLOB_STORE_URL -}}
{{- fail "config.BLOB_STORE_URL is not set; set it to s3://bucket/prefix, or to a folder below /blobs together with blobs.existingClaim" -}}
{{- end -}}
{{- if not (hasPrefix "s3://" $blobs) -}}
{{- if not $values.blobs.existingClaim -}}
{{- fail (printf "config.BLOB_STORE_URL=%s is a folder, and blobs.existingClaim is not set; pods lose this folder when they end. Set blobs.existingClaim, or use s3://bucket/prefix" $blobs) -}}
{{- end -}}
{{- if not (hasPrefix "/blobs/" $blobs) -}}
{{- fail (printf "config.BLOB_STORE_URL=%s must be a folder below /blobs, where the claim %s is mounted, such as /blobs/facecrawl" $blobs $values.blobs.existingClaim) -}}
{{- end -}}
{{- end -}}

{{- range $component := list "api" "worker" -}}
{{- $own := index $values $component -}}
{{- range $name, $value := mergeOverwrite (deepCopy $config) (deepCopy $own.config) -}}
{{- if regexMatch "://[^/?#]*@" (toString $value) -}}
{{- fail (printf "config.%s contains a user name or a password; config is not secret" $name) -}}
{{- end -}}
{{- end -}}
{{- range $name := list "BLOB_STORE_URL" "SEARCH_INDEX" "MODEL_PACK" "AUTH" -}}
{{- if hasKey $own.config $name -}}
{{- fail (printf "%s.config.%s is not allowed, because all processes need the same value; set config.%s" $component $name $name) -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{- $managed := list "PORT" "WORKER_PORT" "DRAIN_SECONDS" "DATA_DIR" "MODELS_DIR" -}}
{{- $secret := list "DATABASE_URL" "SUPPRESSION_SECRET" "WEBHOOK_SECRET" "QDRANT_API_KEY" "MQTT_PASSWORD" "AWS_ACCESS_KEY_ID" "AWS_SECRET_ACCESS_KEY" "AWS_SESSION_TOKEN" -}}
{{- range $component := list "api" "worker" "migration" -}}
{{- range (index $values $component).extraEnv -}}
{{- if or (has .name $managed) (and (eq $component "migration") (eq .name "LOG_FORMAT")) -}}
{{- fail (printf "%s.extraEnv sets %s, which the chart sets itself" $component .name) -}}
{{- end -}}
{{- if has .name $secret -}}
{{- fail (printf "%s.extraEnv sets %s; set secrets.%s instead" $component .name .name) -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{- if and (eq (toString $config.SEARCH_INDEX) "qdrant") (not $config.QDRANT_URL) -}}
{{- fail "config.SEARCH_INDEX=qdrant needs config.QDRANT_URL, the address of the gRPC interface of your Qdrant server" -}}
{{- end -}}

{{- if $values.ingress.enabled -}}
{{- if not $values.ingress.host -}}
{{- fail "ingress.enabled is true and ingress.host is not set; set it to the public name of the service" -}}
{{- end -}}
{{- if eq (toString $config.AUTH) "proxy" -}}
{{- fail "ingress.enabled is true and config.AUTH is proxy; the Ingress forwards headers such as X-Forwarded-User that its callers send, so everyone could pretend to be signed on. Set config.AUTH to keys, or disable the Ingress and run the sign-on proxy in front of the Service" -}}
{{- else if ne (toString $config.AUTH) "keys" -}}
{{- fail (printf "ingress.enabled is true and config.AUTH is %v; without keys, everyone who reaches the Ingress can read and delete all faces. Set config.AUTH to keys" $config.AUTH) -}}
{{- end -}}
{{- end -}}

{{- with $values.worker.autoscaling -}}
{{- if .enabled -}}
{{- if not .prometheus.serverAddress -}}
{{- fail "worker.autoscaling.enabled is true and worker.autoscaling.prometheus.serverAddress is not set; set it to the URL of Prometheus" -}}
{{- end -}}
{{- if gt (int .minReplicas) (int .maxReplicas) -}}
{{- fail (printf "worker.autoscaling.minReplicas (%d) is greater than worker.autoscaling.maxReplicas (%d)" (int .minReplicas) (int .maxReplicas)) -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{- if and $values.networkPolicy.enabled (not $values.networkPolicy.clients) -}}
{{- fail "networkPolicy.enabled is true and networkPolicy.clients is empty; list who may call the API" -}}
{{- end -}}

{{- if and $values.networkPolicy.enabled $values.monitoring.enabled (not $values.networkPolicy.monitoring) -}}
{{- fail "monitoring.enabled and networkPolicy.enabled are true and networkPolicy.monitoring is empty; list the pods of Prometheus" -}}
{{- end -}}

{{- if and $values.monitoring.enabled (has (toString $config.AUTH) (list "keys" "proxy")) (not $values.monitoring.keySecret.name) -}}
{{- fail "monitoring.enabled is true and monitoring.keySecret.name is not set; with config.AUTH=keys or proxy, /metrics requires an API key with the scope system" -}}
{{- end -}}
{{- end -}}
