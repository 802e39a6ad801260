//! Generates `.env.example` from the variables.
use super::variables;

const WIDTH: usize = 110;

/// Variables that docker-compose.yml reads, and not the program: name, default, meaning.
const CONTAINERS: &[(&str, &str, &str)] = &[
    ("POSTGRES_PASSWORD", "facecrawl", "Password of the database. Only the containers can connect to it."),
    (
        "POSTGRES_SHARED_BUFFERS",
        "1GB",
        "Memory for the database's own cache: an eighth to a quarter of the machine's memory.",
    ),
    ("GPU_PORT", "8081", "Port of backend-gpu on this machine's loopback address."),
    ("ROCM_PORT", "8082", "Port of backend-rocm on this machine's loopback address."),
    ("VIDEO_GID", "44", "Numeric id of the host's group video, for AMD GPUs."),
    ("RENDER_GID", "109", "Numeric id of the host's group render, for AMD GPUs."),
    ("PROMETHEUS_PORT", "9090", "Port of Prometheus on this machine's loopback address."),
    ("GRAFANA_PORT", "3000", "Port of Grafana on this machine's loopback address."),
    ("GRAFANA_PASSWORD", "facecrawl", "Initial password of Grafana's user admin."),
];

/// Returns `.env.example`: each variable with its meaning, its allowed values and its default.
pub fn env_example() -> String {
    let mut text = String::from(
        "# Configuration of facecrawl. Copy this file to .env and change what you need. Every line is optional.\n\
         # Later sources override earlier ones: defaults, facecrawl.toml (the same names in lower case), .env,\n\
         # the environment, flags. `facecrawl config check` prints every value and its source.\n",
    );
    let mut group = "";
    for variable in variables() {
        if variable.group != group {
            group = variable.group;
            text.push_str(&format!("\n# ---- {group} ----\n"));
        }
        text.push('\n');
        for line in wrap(&format!("{} Allowed: {}.", variable.meaning, variable.allowed)) {
            text.push_str(&format!("# {line}\n"));
        }
        text.push_str(&format!("#{}={}\n", variable.name, variable.default));
    }
    text.push_str("\n# ---- Containers (only docker-compose.yml reads these) ----\n");
    for (name, default, meaning) in CONTAINERS {
        text.push_str(&format!("\n# {meaning}\n#{name}={default}\n"));
    }
    text
}

fn wrap(text: &str) -> Vec<String> {
    let mut lines = vec![String::new()];
    for word in text.split_whitespace() {
        let last = lines.len() - 1;
        if lines[last].is_empty() {
            lines[last].push_str(word);
        } else if lines[last].len() + 1 + word.len() <= WIDTH - 2 {
            lines[last].push(' ');
            lines[last].push_str(word);
        } else {
            lines.push(word.into());
        }
    }
    lines
}
