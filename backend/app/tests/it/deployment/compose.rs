//! Checks `docker-compose.yml`. Unknown keys are errors, so that a check is added for each new key.
use crate::deployment::{IMAGES, parse_arguments, read, root, stages};
use app::config::variables;
use serde::Deserialize;
use std::collections::{BTreeMap, BTreeSet};

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Compose {
    services: BTreeMap<String, Service>,
    volumes: BTreeMap<String, Option<()>>,
    #[serde(rename = "x-settings")]
    settings: BTreeMap<String, Option<String>>,
    #[serde(rename = "x-environment")]
    _environment: serde_json::Value,
    #[serde(rename = "x-facecrawl")]
    _facecrawl: serde_json::Value,
    #[serde(rename = "x-monitoring")]
    _monitoring: serde_json::Value,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Service {
    image: String,
    build: Option<Build>,
    pull_policy: Option<String>,
    #[serde(default)]
    command: Vec<String>,
    restart: String,
    #[serde(default)]
    read_only: bool,
    #[serde(default)]
    cap_drop: Vec<String>,
    #[serde(default)]
    cap_add: Vec<String>,
    #[serde(default)]
    security_opt: Vec<String>,
    #[serde(default)]
    profiles: Vec<String>,
    #[serde(default)]
    environment: BTreeMap<String, Option<String>>,
    #[serde(default)]
    ports: Vec<String>,
    #[serde(default)]
    volumes: Vec<String>,
    #[serde(default)]
    depends_on: BTreeMap<String, DependsOn>,
    healthcheck: Option<Healthcheck>,
    stop_grace_period: Option<String>,
    #[serde(default)]
    devices: Vec<String>,
    runtime: Option<String>,
    #[serde(default)]
    tmpfs: Vec<String>,
    #[serde(rename = "shm_size")]
    _shm_size: Option<String>,
    #[serde(rename = "group_add")]
    _group_add: Option<Vec<String>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Build {
    context: String,
    dockerfile: Option<String>,
    target: Option<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct DependsOn {
    condition: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Healthcheck {
    test: Vec<String>,
    #[serde(rename = "interval")]
    _interval: String,
    #[serde(rename = "timeout")]
    _timeout: String,
    #[serde(rename = "start_period")]
    _start_period: Option<String>,
    #[serde(rename = "retries")]
    _retries: Option<u32>,
}

fn compose() -> Compose {
    serde_saphyr::from_str(&read("docker-compose.yml")).unwrap()
}

/// Returns the services that run this program.
fn own_services(compose: &Compose) -> impl Iterator<Item = (&String, &Service)> {
    compose.services.iter().filter(|(_, service)| service.image.starts_with("facecrawl"))
}

/// Returns the names in `${NAME}` and `${NAME:-default}`, with the defaults.
fn substitutions(text: &str) -> Vec<(&str, Option<&str>)> {
    let parts = text.split("${").skip(1).map(|rest| rest.split('}').next().unwrap());
    parts
        .map(|part| part.split_once(":-").map_or((part, None), |(name, default)| (name, Some(default))))
        .collect()
}

#[test]
fn only_basic_services_start_without_profile() {
    let compose = compose();
    let without_profile: Vec<&str> = (compose.services.iter())
        .filter(|(_, service)| service.profiles.is_empty())
        .map(|(name, _)| name.as_str())
        .collect();
    assert_eq!(without_profile, ["backend", "postgres", "worker"]);
    let profile = |name: &str| compose.services[name].profiles.join(",");
    assert_eq!(
        ["backend-gpu", "backend-rocm", "backend-webgpu", "qdrant", "prometheus", "grafana"].map(profile),
        ["gpu", "rocm", "webgpu", "qdrant", "monitoring", "monitoring"]
    );
    assert!(compose.services["backend-rocm"].devices.iter().any(|device| device.starts_with("/dev/kfd")));
}

#[test]
fn ports_are_published_locally_without_conflicts() {
    let compose = compose();
    let mut taken = BTreeSet::new();
    for (name, service) in &compose.services {
        for port in &service.ports {
            let published = port
                .strip_prefix("127.0.0.1:")
                .unwrap_or_else(|| panic!("{name}: {port} is published to all"));
            let default = published.split(":-").nth(1).unwrap().split('}').next().unwrap();
            assert!(taken.insert(default.parse::<u16>().unwrap()), "{name}: {default} is taken");
        }
    }
    assert_eq!(taken.first(), Some(&3000));
    assert!(
        taken.contains(&8080)
            && compose.services["postgres"].ports.is_empty()
            && compose.services["worker"].ports.is_empty()
    );
}

#[test]
fn published_ports_match_listening_port() {
    for (name, service) in own_services(&compose()) {
        let environment = &service.environment;
        assert_eq!(
            (environment["HOST"].as_deref(), environment["PORT"].as_deref()),
            (Some("0.0.0.0"), Some("8080")),
            "{name}"
        );
        assert!(service.ports.iter().all(|port| port.ends_with(":8080")), "{name}");
        assert!(
            environment["AUTH"].as_ref().unwrap().starts_with("${AUTH:-"),
            "{name}: an open port requires an explicit AUTH"
        );
    }
}

/// Without keys, the host in a request must be a known name of the service. Containers address each
/// other by the names of their services in the compose file.
#[test]
fn public_hosts_include_all_containers_and_operator_hosts() {
    let compose = compose();
    let names: Vec<&String> = own_services(&compose).map(|(name, _)| name).collect();
    for (name, service) in own_services(&compose) {
        let hosts: Vec<&str> = service.environment["PUBLIC_HOSTS"].as_ref().unwrap().split(',').collect();
        assert!(names.iter().all(|other| hosts.contains(&other.as_str())), "{name}: {hosts:?}");
        assert!(hosts.contains(&"${PUBLIC_HOSTS:-}") && !hosts.contains(&"*"), "{name}: {hosts:?}");
    }
}

#[test]
fn compose_variables_and_defaults_match_env_example() {
    let example = read(".env.example");
    let default = |name: &str| {
        example.lines().find_map(|line| line.strip_prefix(&format!("#{name}=")).map(str::to_owned))
    };
    let text = read("docker-compose.yml");
    // Containers have different defaults for authentication, drain time, GPUs and the address of
    // Qdrant.
    let different_defaults =
        ["AUTH", "DRAIN_SECONDS", "GPU_BACKEND", "FACE_DETECTION_GPU", "FACE_EMBEDDING_GPU", "QDRANT_URL"];
    for (name, value) in substitutions(&text) {
        let expected = default(name).unwrap_or_else(|| panic!("{name} is not in .env.example"));
        assert!(
            different_defaults.contains(&name) || value == Some(expected.as_str()),
            "{name}: {value:?} in docker-compose.yml, {expected} in .env.example"
        );
    }
    // OpenTelemetry and CUDA read these variables themselves.
    let is_library_variable = |name: &str| name.starts_with("OTEL_") || name.starts_with("CUDA_");
    for (service, found) in own_services(&compose()) {
        for name in found.environment.keys().filter(|name| !is_library_variable(name)) {
            assert!(default(name).is_some(), "{service}: {name} is not in .env.example");
        }
    }
}

/// A variable of `.env` that no container received would be ignored without a message.
#[test]
fn containers_receive_every_program_setting() {
    let compose = compose();
    assert!(compose.settings.values().all(Option::is_none), "the values must come from .env or the shell");
    // The images set these, and the containers have no private database.
    let image_variables = ["FACE_MODEL_MIRROR", "GPU_PLUGINS_DIR", "ORT_DYLIB_PATH", "POSTGRES_BIN_DIR"];
    for (name, service) in own_services(&compose) {
        for variable in variables().iter().filter(|variable| !image_variables.contains(&variable.name)) {
            assert!(service.environment.contains_key(variable.name), "{name}: {} is missing", variable.name);
        }
        for name in image_variables {
            assert!(
                !service.environment.contains_key(name),
                "an empty {name} would override the value of the image"
            );
        }
    }
}

#[test]
fn container_commands_are_accepted_by_program() {
    for (name, service) in own_services(&compose()) {
        parse_arguments(&service.command).unwrap_or_else(|error| panic!("{name}: {error}"));
        if let Some(check) = &service.healthcheck {
            assert_eq!((check.test[0].as_str(), check.test[1].as_str()), ("CMD", "facecrawl"), "{name}");
            parse_arguments(&check.test[2..]).unwrap_or_else(|error| panic!("{name}: {error}"));
        }
    }
    let compose = compose();
    let worker = &compose.services["worker"];
    let port = worker.environment["WORKER_PORT"].as_ref().unwrap();
    assert!(worker.healthcheck.as_ref().unwrap().test.last().unwrap().ends_with(&format!(":{port}")));
    assert!(read("docs/monitoring/prometheus.yml").contains(&format!("port: {port}")));
}

#[test]
fn containers_are_read_only_with_minimal_capabilities() {
    for (name, service) in &compose().services {
        assert!(service.read_only && service.cap_drop == ["ALL"], "{name}");
        assert_eq!(service.security_opt, ["no-new-privileges:true"], "{name}");
        // The official image needs these capabilities to change the owner of its folders and to
        // switch its user.
        let needed: &[&str] = match name.as_str() {
            "postgres" => &["CHOWN", "DAC_READ_SEARCH", "FOWNER", "SETGID", "SETUID"],
            _ => &[],
        };
        assert_eq!(service.cap_add, needed, "{name}");
        assert!(service.tmpfs.iter().any(|folder| folder == "/tmp"), "{name}");
    }
    let postgres = &compose().services["postgres"];
    assert!(postgres.tmpfs.iter().any(|folder| folder == "/var/run/postgresql"), "the folder of its socket");
}

#[test]
fn stop_grace_period_exceeds_drain_time() {
    let seconds = |text: &str| text.strip_suffix('s').unwrap().parse::<u32>().unwrap();
    for (name, service) in own_services(&compose()) {
        let (_, drain) = substitutions(service.environment["DRAIN_SECONDS"].as_ref().unwrap())[0];
        let grace = seconds(service.stop_grace_period.as_deref().unwrap());
        assert!(drain.unwrap().parse::<u32>().unwrap() < grace, "{name}");
    }
}

#[test]
fn container_images_are_pinned_and_references_exist() {
    let compose = compose();
    let mut used = BTreeSet::new();
    for (name, service) in &compose.services {
        let tag = service
            .image
            .rsplit_once(':')
            .unwrap_or_else(|| panic!("{name}: {} has no tag", service.image))
            .1;
        assert_ne!(tag, "latest", "{name}");
        assert_eq!(service.restart, "unless-stopped", "{name}");
        let is_built =
            compose.services.values().any(|other| other.build.is_some() && other.image == service.image);
        assert_eq!(tag == "local", is_built, "{name}: local images are built here, others are not");
        assert_eq!(
            service.pull_policy.as_deref(),
            (is_built && service.build.is_none()).then_some("never"),
            "{name}"
        );
        for volume in &service.volumes {
            let source = volume.split(':').next().unwrap();
            match source.strip_prefix("./") {
                Some(path) => {
                    assert!(root().join(path).is_file() && volume.ends_with(":ro"), "{name}: {volume}")
                }
                None => assert!(used.insert(source.to_owned()) || source != "postgres", "{name}: {volume}"),
            }
        }
        for (other, dependency) in &service.depends_on {
            let other_service = &compose.services[other];
            let is_checked =
                other_service.healthcheck.is_some() || other_service.image.starts_with("facecrawl");
            assert!(
                dependency.condition == "service_started"
                    || dependency.condition == "service_healthy" && is_checked,
                "{name}: {other}"
            );
        }
    }
    assert!(
        used.iter().eq(compose.volumes.keys()),
        "{used:?} are used, {:?} declared",
        compose.volumes.keys()
    );
}

#[test]
fn compose_builds_exactly_known_images() {
    let compose = compose();
    let mut images = BTreeSet::new();
    for (name, service) in &compose.services {
        let Some(build) = &service.build else { continue };
        assert_eq!(build.context, ".", "{name}");
        let file = build.dockerfile.as_deref().unwrap_or("Dockerfile");
        let last_stage = stages(file).pop().unwrap().name;
        images.insert((file, build.target.clone().unwrap_or(last_stage)));
    }
    let expected = IMAGES.map(|(file, stage)| (file, stage.to_owned()));
    assert!(images.iter().eq(&expected), "{images:?}");
}

/// The override for hosts without a GPU changes only the runtime.
#[test]
fn no_gpu_override_changes_only_runtime() {
    assert_eq!(compose().services["backend-gpu"].runtime.as_deref(), Some("nvidia"));
    let changed: serde_json::Value = serde_saphyr::from_str(&read("deploy/no-gpu.yml")).unwrap();
    assert_eq!(changed, serde_json::json!({"services": {"backend-gpu": {"runtime": "runc"}}}));
    let command = "-f docker-compose.yml -f deploy/no-gpu.yml up backend-gpu";
    for file in ["docker-compose.yml", "deploy/no-gpu.yml", "docs/how-to/OPERATIONS.md"] {
        assert!(read(file).contains(command), "{file} does not contain the command");
    }
}
