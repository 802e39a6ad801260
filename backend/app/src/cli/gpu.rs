//! `gpu`: devices and operations.
use super::{Exit, output};
use crate::config::Settings;
use crate::service::start_engine;
use clap::Args;
use inference::DeviceReport;

/// What runs on which device, and why
#[derive(Args, Debug)]
pub struct GpuArgs {
    /// Print one JSON document, the answer of GET /gpu
    #[arg(long)]
    json: bool,
}

pub(super) async fn run(settings: &Settings, args: GpuArgs) -> anyhow::Result<Exit> {
    // Only a loaded model tells where it runs: what a driver lists and what works are two things.
    let report = start_engine(settings).await?.report();
    if args.json {
        output::json(&report)?;
    } else {
        print(&report)?;
    }
    Ok(Exit::Success)
}

fn print(report: &DeviceReport) -> anyhow::Result<()> {
    output::line(format!("ONNX Runtime {} with {}", report.runtime_version, report.backends.join(", ")))?;
    if report.devices.is_empty() {
        output::line("No GPU was found.")?;
    } else {
        let mut devices = output::table(["GPU", "name", "backend", "memory used", "memory", "driver"]);
        let memory = |bytes: Option<u64>| bytes.map_or_else(|| "?".into(), output::megabytes);
        for device in &report.devices {
            devices.add_row([
                device.id.to_string(),
                device.name.clone(),
                device.backend.to_owned(),
                memory(device.memory_used),
                memory(device.memory_total),
                device.driver.clone().unwrap_or_else(|| "?".into()),
            ]);
        }
        output::line(devices)?;
    }
    let mut operations = output::table(["operation", "asked for", "runs on", "reason"]);
    for operation in &report.operations {
        operations.add_row([
            operation.operation,
            &operation.requested,
            &operation.effective,
            operation.reason.as_deref().unwrap_or_default(),
        ]);
    }
    output::line(operations)
}
