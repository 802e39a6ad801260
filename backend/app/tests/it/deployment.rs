//! Checks the Dockerfiles, the systemd units and the configurations of proxies against the code. No
//! container engine is needed.
mod compose;

use app::cli::Cli;
use app::config::variables;
use clap::Parser;
use serde_json::Value;
use testing::root;

/// Reads a file of the checkout.
pub(crate) fn read(path: &str) -> String {
    std::fs::read_to_string(root().join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// Returns an error if the program does not accept these arguments.
fn parse_arguments<S: AsRef<str>>(arguments: &[S]) -> Result<(), String> {
    let words = std::iter::once("facecrawl").chain(arguments.iter().map(AsRef::as_ref));
    Cli::try_parse_from(words).map(|_| ()).map_err(|error| error.to_string())
}

const SERVICES: [&str; 2] = ["deploy/facecrawl.service", "deploy/facecrawl-worker@.service"];

fn unit_values<'a>(unit: &'a str, key: &'a str) -> impl Iterator<Item = &'a str> {
    unit.lines().filter_map(move |line| line.strip_prefix(key)?.strip_prefix('='))
}

#[test]
fn unit_commands_and_variables_are_known_to_program() {
    let names: Vec<&str> = variables().iter().map(|variable| variable.name).collect();
    for service in SERVICES {
        let unit = read(service);
        let command: Vec<&str> = unit_values(&unit, "ExecStart").next().unwrap().split(' ').collect();
        assert!(command[0].ends_with("/facecrawl"), "{service}");
        parse_arguments(&command[1..]).unwrap();
        for assignment in unit_values(&unit, "Environment").flat_map(|line| line.split(' ')) {
            let (name, _) = assignment.split_once('=').unwrap();
            assert!(names.contains(&name), "{service}: {name}");
        }
        let drain = unit.split("DRAIN_SECONDS=").nth(1).unwrap().lines().next().unwrap();
        let stop = unit_values(&unit, "TimeoutStopSec").next().unwrap();
        assert!(
            drain.parse::<u32>().unwrap() < stop.parse::<u32>().unwrap(),
            "{service}: TimeoutStopSec must exceed DRAIN_SECONDS"
        );
    }
}

#[test]
fn settings_of_debian_package_are_known_to_program() {
    let names: Vec<&str> = variables().iter().map(|variable| variable.name).collect();
    let files = ["deploy/deb/facecrawl.toml", "deploy/deb/facecrawl.env"].map(read);
    let lines = files.iter().flat_map(|file| file.lines());
    let mut found = 0;
    for line in lines.filter(|line| !line.is_empty() && !line.starts_with("# ")) {
        let Some((name, _)) = line.trim_start_matches('#').split_once('=') else { continue };
        let name = name.trim().to_ascii_uppercase();
        assert!(names.contains(&name.as_str()), "{line}");
        found += 1;
    }
    assert!(found >= 5, "{found} settings");
}

#[test]
fn units_run_unprivileged_and_sandboxed() {
    for service in SERVICES {
        let unit = read(service);
        let lines = "DynamicUser=yes NoNewPrivileges=yes CapabilityBoundingSet= ProtectSystem=strict ProtectHome=yes \
            PrivateTmp=yes PrivateDevices=yes SystemCallFilter=@system-service UMask=0077";
        for line in lines.split(' ') {
            assert!(unit.lines().any(|found| found == line), "{service} has no line {line}");
        }
    }
    let port =
        read(".env.example").lines().find_map(|line| line.strip_prefix("#PORT=").map(str::to_owned)).unwrap();
    assert_eq!(
        unit_values(&read("deploy/facecrawl.socket"), "ListenStream").next(),
        Some(format!("127.0.0.1:{port}").as_str())
    );
}

/// Returns the first number after the first occurrence of `before`.
fn number_after(text: &str, before: &str) -> u64 {
    let rest = text.split(before).nth(1).unwrap_or_else(|| panic!("{before} is missing")).trim_start();
    rest.chars().take_while(char::is_ascii_digit).collect::<String>().parse().unwrap()
}

/// Returns the words after `start` in the line that begins with it.
fn words_after<'a>(text: &'a str, start: &str) -> Vec<&'a str> {
    let line = text.lines().find_map(|line| line.trim().strip_prefix(start));
    line.unwrap_or_else(|| panic!("{start} is missing")).split_whitespace().collect()
}

/// Returns the content of a block of nginx.conf or of the Caddyfile that contains no other block.
fn block<'a>(text: &'a str, head: &str) -> &'a str {
    let (_, rest) = text.split_once(&format!("{head} {{")).unwrap_or_else(|| panic!("{head} is missing"));
    rest.split('}').next().unwrap()
}

#[test]
fn proxy_limits_and_timeouts_exceed_service_limits() {
    let config = server::Config::default();
    let largest = config.batch_limit.max(config.single_body_limit()) as u64;
    let (request_timeout, idle_timeout) =
        (config.request_timeout.as_secs(), config.connection_idle.as_secs());
    let (caddy, nginx) = (read("deploy/Caddyfile"), read("deploy/nginx.conf"));
    assert!(number_after(&caddy, "max_size") * 1_000_000 > largest);
    assert!(number_after(&nginx, "client_max_body_size") << 20 > largest);
    assert!(
        number_after(&caddy, "response_header_timeout") > request_timeout
            && number_after(&nginx, "proxy_read_timeout") > request_timeout
    );
    assert!(
        number_after(&caddy, "\t\t\tkeepalive") < idle_timeout
            && number_after(&nginx, "\n    keepalive_timeout") < idle_timeout
    );
}

/// An operation that proxies must treat differently from others.
struct StreamingOperation {
    path: String,
    sends_events: bool,
    /// Whether the response begins before the operation has ended.
    streams_response: bool,
    /// Maximum size of a body that is a file, in bytes.
    upload_limit: Option<u64>,
}

/// Returns the operations of the API that send events, or that read a file which may be larger than
/// memory.
fn streaming_operations() -> Vec<StreamingOperation> {
    let document = serde_json::to_value(server::openapi()).unwrap();
    let mut found = Vec::new();
    for (path, item) in document["paths"].as_object().unwrap() {
        for operation in item.as_object().unwrap().values() {
            let responds_with = |wanted: &str| {
                let responses = operation["responses"].as_object();
                responses.is_some_and(|all| all.values().any(|one| has_content_type(one, wanted)))
            };
            let body = &operation["requestBody"];
            let is_upload = ["video/*", "application/zip"].iter().any(|name| has_content_type(body, name));
            let sends_events = responds_with("text/event-stream");
            if sends_events || is_upload {
                found.push(StreamingOperation {
                    path: path.clone(),
                    sends_events,
                    streams_response: sends_events || responds_with("application/x-ndjson"),
                    upload_limit: is_upload.then(|| upload_limit(operation)),
                });
            }
        }
    }
    found
}

/// Returns whether a body or a response of the OpenAPI document can have this content type.
fn has_content_type(described: &Value, name: &str) -> bool {
    described["content"].get(name).is_some()
}

/// Returns the limit that the description of an operation names, such as `at most 512 MiB`. Without
/// one, the limit is `MAX_VIDEO_MB`.
fn upload_limit(operation: &Value) -> u64 {
    let description = operation["description"].as_str().unwrap_or_default();
    let words: Vec<&str> = description.split_whitespace().collect();
    let stated = words.windows(2).find(|pair| pair[1].starts_with("MiB"));
    let stated = stated.map(|pair| pair[0].parse::<u64>().unwrap() << 20);
    stated.unwrap_or(server::Config::default().max_video_bytes)
}

#[test]
fn proxies_stream_events_and_large_uploads() {
    let (nginx, caddy) = (read("deploy/nginx.conf"), read("deploy/Caddyfile"));
    let caddy_uploads = words_after(&caddy, "@uploads path ");
    assert_eq!(words_after(&caddy, "@documents not path "), caddy_uploads, "one limit for each path");
    assert!(caddy.contains("flush_interval -1"), "Caddy does not buffer responses");
    let ingress = read("deploy/helm/templates/ingress.yaml");
    let chart_paths = words_after(&ingress, "{{- $streams := ").join(" ");
    let (_, chart_paths) = chart_paths.split_once("\"paths\" (list ").unwrap();
    let (chart_paths, _) = chart_paths.split_once(')').unwrap();
    let chart_paths: Vec<&str> = chart_paths.split(' ').map(|path| path.trim_matches('"')).collect();
    let full = read("deploy/helm/examples/full.yaml");
    let (_, annotations) = full.split_once("\n  streams:\n").unwrap();
    for annotation in ["proxy-buffering: \"off\"", "proxy-request-buffering: \"off\""] {
        assert!(annotations.contains(annotation), "{annotation}");
    }

    let operations = streaming_operations();
    let paths: Vec<&str> = operations.iter().map(|operation| operation.path.as_str()).collect();
    for known in ["/alerts/events", "/crawls/{id}/events", "/subjects/import", "/videos", "/videos/detect"] {
        assert!(paths.contains(&known), "{known} is not among {paths:?}");
    }
    for StreamingOperation { path, sends_events, streams_response, upload_limit } in &operations {
        let segments = path.split('/').map(|part| if part.starts_with('{') { "[^/]+" } else { part });
        let pattern = segments.collect::<Vec<_>>().join("/");
        let head =
            if pattern == *path { format!("location = {path}") } else { format!("location ~ ^{pattern}$") };
        let location = block(&nginx, &head);
        assert!(!streams_response || location.contains(" proxy_buffering off;"), "nginx buffers {path}");
        assert!(!sends_events || location.contains("proxy_read_timeout 1h;"), "nginx ends {path}");
        let is_in_chart = |prefix: &&str| path == *prefix || path.starts_with(&format!("{prefix}/"));
        assert!(chart_paths.iter().any(is_in_chart), "the streams of the chart lack {path}");
        let Some(limit) = *upload_limit else { continue };
        assert!(location.contains("proxy_request_buffering off;"), "nginx buffers the body of {path}");
        let size = "client_max_body_size";
        let server_or_location = if location.contains(size) { location } else { nginx.as_str() };
        assert!(number_after(server_or_location, size) << 20 > limit, "nginx: {path}");
        let matcher = if caddy_uploads.contains(&path.as_str()) { "@uploads" } else { "@documents" };
        let caddy_limit = number_after(block(&caddy, &format!("request_body {matcher}")), "max_size");
        assert!(caddy_limit * 1_000_000 > limit, "Caddy: {path}");
        assert!(number_after(annotations, "proxy-body-size:") << 20 > limit, "examples/full.yaml: {path}");
    }
}

/// An instruction, whose continued lines are joined.
struct Instruction {
    name: String,
    rest: String,
}

/// A `FROM` and the instructions after it.
struct Stage {
    name: String,
    base: String,
    instructions: Vec<Instruction>,
}

impl Stage {
    fn all(&self, name: &str) -> Vec<&str> {
        self.instructions.iter().filter(|one| one.name == name).map(|one| one.rest.as_str()).collect()
    }

    fn last(&self, name: &str) -> Option<&str> {
        self.all(name).pop()
    }
}

fn stages(file: &str) -> Vec<Stage> {
    let text = read(file);
    let lines: Vec<&str> = text.lines().filter(|line| !line.trim_start().starts_with('#')).collect();
    let joined = lines.join("\n").replace("\\\n", " ");
    let mut stages: Vec<Stage> = Vec::new();
    for line in joined.lines().filter(|line| !line.trim().is_empty()) {
        let (name, rest) = line.split_once(' ').unwrap();
        let rest = rest.split_whitespace().collect::<Vec<_>>().join(" ");
        match name {
            "FROM" => {
                let (base, stage) = rest.split_once(" AS ").unwrap_or((&rest, ""));
                let (name, base) = (stage.to_owned(), base.to_owned());
                stages.push(Stage { name, base, instructions: Vec::new() });
            }
            _ => stages.last_mut().unwrap().instructions.push(Instruction { name: name.to_owned(), rest }),
        }
    }
    stages
}

/// Returns the stage of an image and those that it starts from.
fn image_stages<'a>(stages: &'a [Stage], name: &str) -> Vec<&'a Stage> {
    let find = |name: &str| stages.iter().find(|stage| stage.name == name);
    std::iter::successors(find(name), |stage| find(&stage.base)).collect()
}

/// The images, each with its file and its last stage.
const IMAGES: [(&str, &str); 4] = [
    ("Dockerfile", "cpu"),
    ("Dockerfile.gpu", "cuda"),
    ("Dockerfile.gpu", "webgpu"),
    ("deploy/Dockerfile.rocm", "rocm"),
];

const FILES: [&str; 3] = ["Dockerfile", "Dockerfile.gpu", "deploy/Dockerfile.rocm"];

/// Parses a command in exec form, such as `["a", "b"]`.
fn parse_exec_form(exec_form: &str) -> Vec<String> {
    serde_json::from_str(exec_form).unwrap_or_else(|_| panic!("not in exec form: {exec_form}"))
}

#[test]
fn base_images_are_earlier_stages_or_pinned_versions() {
    for file in FILES {
        let stages = stages(file);
        for (at, stage) in stages.iter().enumerate() {
            let is_earlier_stage = stages[..at].iter().any(|other| other.name == stage.base);
            let tag = stage.base.rsplit_once(':').map_or("", |(_, tag)| tag);
            assert!(is_earlier_stage || !tag.is_empty() && tag != "latest", "{file}: FROM {}", stage.base);
        }
    }
    // The compiler is recent enough for the workspace.
    let manifest = read("Cargo.toml");
    let rust_version = manifest.lines().find_map(|line| line.strip_prefix("rust-version = \"1.")).unwrap();
    let rust_version: u32 = rust_version.trim_matches('"').parse().unwrap();
    for file in FILES {
        let base = &stages(file)[0].base;
        let minor = base.strip_prefix("rust:1.").and_then(|rest| rest.split('-').next());
        assert!(
            minor.unwrap().parse::<u32>().unwrap() >= rust_version,
            "{base}, but rust-version is 1.{rust_version}"
        );
    }
}

#[test]
fn gpu_dockerfile_extends_cpu_dockerfile() {
    let [cpu, gpu] = ["Dockerfile", "Dockerfile.gpu"].map(|file| {
        let text = read(file);
        text[text.find("\nFROM ").unwrap()..].to_owned()
    });
    let added = gpu.strip_prefix(&cpu).expect("Dockerfile.gpu begins with the stages of Dockerfile");
    assert!(added.contains("\nFROM cpu AS cuda\n"), "{added}");
}

/// Returns whether `.dockerignore` excludes the path.
fn is_ignored(path: &str) -> bool {
    let first = path.split('/').next().unwrap();
    read(".dockerignore").lines().any(|line| line == first || line == path)
}

#[test]
fn copied_files_exist_in_context_or_earlier_stage() {
    for file in FILES {
        let stages = stages(file);
        for (at, stage) in stages.iter().enumerate() {
            for copy in stage.all("COPY") {
                let mut words: Vec<&str> = copy.split(' ').collect();
                words.pop();
                if let Some(from) = words[0].strip_prefix("--from=") {
                    assert!(stages[..at].iter().any(|other| other.name == from), "{file}: COPY {copy}");
                    continue;
                }
                for source in words {
                    assert!(root().join(source).exists() && !is_ignored(source), "{file}: COPY {copy}");
                }
            }
        }
    }
    // Files that the build reads are not excluded.
    for path in ["Cargo.toml", "Cargo.lock", "backend", "migrations", "models.toml", "scripts"] {
        assert!(root().join(path).exists() && !is_ignored(path), "{path}");
    }
    assert!(
        is_ignored(".env") && is_ignored("data") && is_ignored(".git"),
        "images must not contain secrets or data"
    );
}

#[test]
fn downloads_are_pinned_and_package_lists_removed() {
    for file in FILES {
        for stage in stages(file) {
            assert_eq!(stage.all("ADD").len(), 0, "{file}: use COPY, which downloads nothing");
            for run in stage.all("RUN") {
                if run.contains("apt-get install") {
                    let is_clean = run.contains("--no-install-recommends")
                        && run.contains("rm -rf /var/lib/apt/lists/*");
                    assert!(run.starts_with("apt-get update && ") && is_clean, "{file}: {run}");
                }
                assert!(
                    !run.contains("cargo install") || run.contains("--locked --version "),
                    "{file}: {run}"
                );
                assert!(
                    !["curl", "wget", "pip install", "sudo", "http:", "https:"]
                        .iter()
                        .any(|bad| run.contains(bad)),
                    "{file}: {run}"
                );
                if let Some(words) = run.strip_prefix("scripts/unpack-wheels ") {
                    let mut words = words.split(' ');
                    let (list, name) = (words.next().unwrap(), words.next().unwrap());
                    let list = read(list);
                    assert!(list.lines().any(|line| line.starts_with(name)), "{file}: {run}");
                }
            }
        }
    }
    for list in ["scripts/runtime-wheels.txt", "scripts/gpu-wheels.txt", "scripts/openvino-wheels.txt"] {
        let text = read(list);
        for entry in text.split("\n").filter(|line| !line.starts_with(['#', ' ']) && !line.is_empty()) {
            assert!(
                entry.contains("==") && entry.ends_with('\\'),
                "{list}: {entry} has no version or no hash"
            );
        }
    }
    assert!(read("scripts/unpack-wheels").contains("--require-hashes"));
}

#[test]
fn container_images_run_unprivileged_with_valid_health_check() {
    let names: Vec<&str> = variables().iter().map(|variable| variable.name).collect();
    let other_variables = ["LD_LIBRARY_PATH", "HOME", "NVIDIA_VISIBLE_DEVICES", "NVIDIA_DRIVER_CAPABILITIES"];
    for (file, name) in IMAGES {
        let stages = stages(file);
        let image = image_stages(&stages, name);
        let runs = |part: &str| image.iter().flat_map(|stage| stage.all("RUN")).any(|run| run.contains(part));
        let last = |name: &str| {
            let found = image.iter().find_map(|stage| stage.last(name));
            found.unwrap_or_else(|| panic!("{file}: no {name}"))
        };
        let user = last("USER");
        assert!(user.split(':').all(|id| id.parse::<u32>().is_ok_and(|id| id > 0)), "USER {user}");
        assert!(
            runs(&format!("--uid {}", user.split(':').next().unwrap())),
            "the image does not create USER {user}"
        );
        assert_eq!(parse_exec_form(last("ENTRYPOINT")), ["facecrawl"]);
        parse_arguments(&parse_exec_form(last("CMD"))).unwrap();
        let (_, check) = last("HEALTHCHECK").split_once(" CMD ").unwrap();
        assert_eq!(parse_exec_form(check)[0], "facecrawl");
        parse_arguments(&parse_exec_form(check)[1..]).unwrap();
        assert_eq!(last("EXPOSE"), "8080");
        let environment: Vec<&str> = image.iter().flat_map(|stage| stage.all("ENV")).collect();
        let environment = environment.join(" ");
        assert!(environment.contains("HOST=0.0.0.0"), "{file}: {environment}");
        for assignment in environment.split(' ') {
            let (name, _) = assignment.split_once('=').unwrap();
            let is_known = names.contains(&name) || other_variables.contains(&name);
            assert!(is_known, "{file}: {name} is not a variable of this program");
        }
        for folder in parse_exec_form(last("VOLUME")) {
            assert!(runs(&format!("chown facecrawl:facecrawl /models {folder}")) || folder == "/models");
        }
    }
}
