//! `.env.example`, written from the variables themselves.
use super::variables;

const WIDTH: usize = 110;

/// The text of `.env.example`: every variable with its meaning, what is allowed and its default.
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
