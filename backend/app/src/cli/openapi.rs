use super::Exit;
use crate::output;

pub(super) fn run() -> anyhow::Result<Exit> {
    output::json(&server::openapi())?;
    Ok(Exit::Success)
}
