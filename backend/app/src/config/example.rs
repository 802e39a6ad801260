//! Generates `.env.example` from the variables.
use super::variables;

const WIDTH: usize = 110;

/// Variables that only docker-compose.yml reads: name, default, meaning. The program does not use
/// them.
const CONTAINERS: &[(&str, &str, &str)] = &[
    ("POSTGRES_PASSWORD", "facecrawl", "Password of the database, which only the containers can reach."),
    (
        "POSTGRES_SHARED_BUFFERS",
        "1GB",
        "What the database keeps in memory of its own; an eighth to a quarter of the machine's.",
    ),
    ("GPU_PORT", "8081", "Port of backend-gpu on this machine's loopback address."),
    ("ROCM_PORT", "8082", "Port of backend-rocm on this machine's loopback address."),
    ("VIDEO_GID", "44", "Number of the host's group video, for AMD GPUs."),
    ("RENDER_GID", "109", "Number of the host's group render, for AMD GPUs."),
    ("PROMETHEUS_PORT", "9090", "Port of Prometheus on this machine's loopback address."),
    ("GRAFANA_PORT", "3000", "Port of Grafana on this machine's loopback address."),
    ("GRAFANA_PASSWORD", "facecrawl", "Password of Grafana's user admin, at its first start."),
];

/// Returns the text of `.env.example`: each variable with its meaning, its allowed values and its
/// default.
pub fn env_example() -> String {
    let mut text = String::from(
        "# Configuration of facecrawl. Copy to .env and change what you need; every line is optional.\n\
         # Order, lowest first: defaults, facecrawl.toml (the same names in lower case), .env, environment, flags.\n\
         # `facecrawl config check` prints every value and where it came from.\n",
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
    text.push_str("\n# ---- Containers (docker-compose.yml alone reads these) ----\n");
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
