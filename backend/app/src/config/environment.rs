//! Handles environment variables that libraries read: allocator, ONNX Runtime and OpenTelemetry.
//! The variables of this program are in `settings`.
use crate::config::ConfigError;
use std::os::unix::process::CommandExt;

/// The variable that disables the telemetry of ONNX Runtime. From version 1.31, its library for
/// Linux writes a device ID and a database for events to the user's cache folder while it loads,
/// before a program can disable its telemetry.
const NO_TELEMETRY: (&str, &str) = ("ORT_DISABLE_TELEMETRY", "1");

/// Default settings of glibc's allocator. Child processes, such as Postgres, inherit them.
///
/// Without the first two, glibc keeps the memory of images and frames for each thread, and does not
/// return it to the system. Without the third, it returns free memory as soon as there are 128 KiB
/// of it. The program soon needs this memory again, and the page faults then take up to a tenth of
/// the processor time (docs/how-to/SIZING.md).
const ALLOCATOR: [(&str, &str); 3] = [
    ("MALLOC_ARENA_MAX", "2"),
    ("MALLOC_MMAP_THRESHOLD_", "8388608"),
    ("MALLOC_TRIM_THRESHOLD_", "16777216"),
];

/// Restarts the program with the variables above if one of them is missing. The process keeps its
/// ID and loses everything else, so this must be called first.
pub fn restart_with_library_settings() {
    let unset = |(name, _): &(&str, &str)| std::env::var_os(name).is_none();
    let mut missing: Vec<_> = ALLOCATOR.into_iter().filter(unset).collect();
    let (name, value) = NO_TELEMETRY;
    missing.extend(std::env::var_os(name).is_none_or(|set| set != value).then_some(NO_TELEMETRY));
    if missing.is_empty() {
        return;
    }
    let mut arguments = std::env::args_os();
    let program_name = arguments.next();
    let error = match std::env::current_exe() {
        Ok(program) => {
            let mut command = std::process::Command::new(program);
            if let Some(program_name) = program_name {
                command.arg0(program_name);
            }
            command.args(arguments).envs(missing).exec()
        }
        Err(error) => error,
    };
    eprintln!(
        "warning: cannot restart with {name}={value} ({error}); set it, or ONNX Runtime writes a device ID"
    );
}

/// Settings of the trace export. These settings exist only if spans are exported.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Otlp {
    /// Whether the environment sets the service name.
    pub has_service_name: bool,
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
        let has_value =
            |name: &str, value: &str| get(name).is_some_and(|found| found.eq_ignore_ascii_case(value));
        let endpoints = ["OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT"];
        if !endpoints.iter().any(|name| get(name).is_some())
            || has_value("OTEL_SDK_DISABLED", "true")
            || has_value("OTEL_TRACES_EXPORTER", "none")
        {
            return Ok(None);
        }
        let protocols = ["OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL"];
        if let Some((name, value)) = protocols.iter().find_map(|name| Some((*name, get(name)?)))
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
        Ok(Some(Self { has_service_name: get("OTEL_SERVICE_NAME").is_some() || in_attributes() }))
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
    fn otlp_endpoint_enables_export_unless_disabled() {
        let endpoint = ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:4318");
        assert_eq!(read(&[]).unwrap(), None);
        assert_eq!(read(&[endpoint]).unwrap(), Some(Otlp { has_service_name: false }));
        assert_eq!(
            read(&[endpoint, ("OTEL_SERVICE_NAME", "faces")]).unwrap(),
            Some(Otlp { has_service_name: true })
        );
        assert_eq!(read(&[endpoint, ("OTEL_SDK_DISABLED", "true")]).unwrap(), None);
        assert_eq!(read(&[endpoint, ("OTEL_TRACES_EXPORTER", "none")]).unwrap(), None);
    }

    #[test]
    fn unsupported_otlp_protocol_error_names_supported_one() {
        let endpoint = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "http://127.0.0.1:4317");
        let error = read(&[endpoint, ("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc")]).unwrap_err().to_string();
        assert!(
            ["OTEL_EXPORTER_OTLP_PROTOCOL", "grpc", "http/protobuf"].iter().all(|part| error.contains(part)),
            "{error}"
        );
        assert!(read(&[endpoint, ("OTEL_EXPORTER_OTLP_PROTOCOL", "http/protobuf")]).unwrap().is_some());
    }
}
