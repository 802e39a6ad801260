//! Reads the standard `OTEL_` variables that affect this program's decisions. The OpenTelemetry SDK
//! reads the others.
use super::error::ConfigError;

/// Settings of the trace export. These settings exist only if spans are exported.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Otlp {
    /// Whether the environment sets the service name.
    pub named: bool,
}

impl Otlp {
    /// Returns `None` if no endpoint for traces is set or the export is disabled. Only OTLP over
    /// HTTP with protobuf is supported.
    ///
    /// # Errors
    /// Fails if the environment selects a different protocol.
    pub fn from_environment() -> Result<Option<Self>, ConfigError> {
        Self::read(|name| std::env::var(name).ok().filter(|value| !value.is_empty()))
    }

    fn read(get: impl Fn(&str) -> Option<String>) -> Result<Option<Self>, ConfigError> {
        let is = |name: &str, value: &str| get(name).is_some_and(|found| found.eq_ignore_ascii_case(value));
        let endpoint = ["OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT"];
        if !endpoint.iter().any(|name| get(name).is_some())
            || is("OTEL_SDK_DISABLED", "true")
            || is("OTEL_TRACES_EXPORTER", "none")
        {
            return Ok(None);
        }
        let protocol = ["OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL"];
        if let Some((name, value)) = protocol.iter().find_map(|name| Some((*name, get(name)?)))
            && value != "http/protobuf"
        {
            return Err(ConfigError::Invalid {
                key: name.into(),
                value,
                origin: "environment".into(),
                allowed: "http/protobuf (port 4318 of a collector), or unset".into(),
            });
        }
        let in_attributes =
            || get("OTEL_RESOURCE_ATTRIBUTES").is_some_and(|text| text.contains("service.name="));
        Ok(Some(Self { named: get("OTEL_SERVICE_NAME").is_some() || in_attributes() }))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn read(variables: &[(&str, &str)]) -> Result<Option<Otlp>, ConfigError> {
        Otlp::read(|name| {
            let found = variables.iter().find(|(known, _)| *known == name);
            found.map(|(_, value)| (*value).to_owned())
        })
    }

    #[test]
    fn an_endpoint_switches_it_on_and_the_standard_switches_switch_it_off() {
        let endpoint = ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:4318");
        assert_eq!(read(&[]).unwrap(), None);
        assert_eq!(read(&[endpoint]).unwrap(), Some(Otlp { named: false }));
        assert_eq!(read(&[endpoint, ("OTEL_SERVICE_NAME", "faces")]).unwrap(), Some(Otlp { named: true }));
        assert_eq!(read(&[endpoint, ("OTEL_SDK_DISABLED", "true")]).unwrap(), None);
        assert_eq!(read(&[endpoint, ("OTEL_TRACES_EXPORTER", "none")]).unwrap(), None);
    }

    #[test]
    fn a_protocol_that_is_not_built_in_is_refused_and_the_right_one_named() {
        let endpoint = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "http://127.0.0.1:4317");
        let error = read(&[endpoint, ("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc")]).unwrap_err().to_string();
        assert!(
            ["OTEL_EXPORTER_OTLP_PROTOCOL", "grpc", "http/protobuf"].iter().all(|part| error.contains(part)),
            "{error}"
        );
        assert!(read(&[endpoint, ("OTEL_EXPORTER_OTLP_PROTOCOL", "http/protobuf")]).unwrap().is_some());
    }
}
