//! Implements `gpu`, which lists devices and operations, and tests every device.
use super::Exit;
use crate::config::Settings;
use crate::decoder::open_decoder;
use crate::output;
use crate::service::{prepare_models, start_engine};
use clap::Args;
use comfy_table::Table;
use inference::ep::Provider;
use inference::{
    Config, DeviceReport, DeviceTest, GpuBackend, GpuDevice, PassedOver, SelfTest, TestResult,
    missing_gpu_runtimes,
};

/// The arguments of `gpu`.
#[derive(Args, Debug)]
pub struct GpuArgs {
    /// Load and run every model on every device, compare the results with the CPU, measure the time
    ///
    /// Exit status 0: all available devices passed. 1: no device passed, or no device of the
    /// requested GPU_BACKEND did. 3: some devices failed.
    #[arg(long)]
    test: bool,
    /// Print one JSON document; without --test, the response of GET /gpu
    #[arg(long)]
    json: bool,
}

pub(super) async fn run(settings: &Settings, args: GpuArgs) -> anyhow::Result<Exit> {
    if args.test {
        return run_tests(settings, args.json).await;
    }
    // The device of a model is known only after it is loaded. A device that the driver lists may
    // still not work.
    let mut report = start_engine(settings).await?.report();
    report.add_operation(tokio::task::block_in_place(|| open_decoder(settings))?.report);
    output::print_json_or(args.json, &report, || {
        print_report(&report)?;
        let operations = settings.gpu_operations();
        let backends = settings.gpu_backends().into_iter().filter(|_| !operations.is_empty());
        let missing =
            backends.flat_map(|backend| missing_gpu_runtimes(backend, &operations, &report.providers));
        match missing.collect::<Vec<_>>().as_slice() {
            [] => Ok(()),
            missing => output::print_line(format!(
                "to install the backend for the GPUs of this machine, in a checkout: ./scripts/gpu-runtime {}",
                missing.join(" ")
            )),
        }
    })?;
    Ok(Exit::Success)
}

fn print_report(report: &DeviceReport) -> anyhow::Result<()> {
    output::print_line(format!("ONNX Runtime {}", report.runtime_version))?;
    let mut providers = output::table(["backend", "in this program", "installed"]);
    let yes_or_no = |is_present: bool| if is_present { "yes" } else { "no" };
    for provider in &report.providers {
        providers.add_row([provider.name, yes_or_no(provider.in_build), yes_or_no(provider.in_library)]);
    }
    output::print_line(providers)?;
    print_devices(&report.devices)?;
    let mut operations = output::table(["operation", "requested", "runs on"]);
    let (mut reasons, mut passed_over) = (Reasons::default(), Reasons::default());
    for operation in &report.operations {
        operations.add_row([operation.operation, &operation.requested, &operation.effective]);
        reasons.add(operation.operation, operation.reason.as_deref());
        // The reason of an operation on the CPU is that of one of these providers.
        let is_other =
            |failure: &&PassedOver| operation.reason.as_ref().is_none_or(|r| !r.contains(&failure.reason));
        for failure in operation.passed_over.iter().filter(is_other) {
            let failure = format!("not {}: {}", failure.provider, failure.reason);
            passed_over.add(operation.operation, Some(&failure));
        }
    }
    output::print_line(operations)?;
    reasons.print()?;
    passed_over.print()?;
    let mut models = output::table_with_unbroken_columns(
        &[0],
        ["model", "device", "provider", "dtype", "sessions", "load s", "GPU memory before", "after"],
    );
    for model in &report.models {
        models.add_row([
            model.file.clone(),
            model.device.clone(),
            model.provider.to_owned(),
            model.precision.to_owned(),
            model.sessions.to_string(),
            format!("{:.2}", model.seconds),
            format_memory(model.memory_before),
            format_memory(model.memory_after),
        ]);
    }
    output::print_line(models)
}

/// Reasons without duplicates, each with the operations or devices to which it applies.
#[derive(Default)]
struct Reasons(Vec<(String, Vec<String>)>);

impl Reasons {
    fn add(&mut self, name: &str, reason: Option<&str>) {
        let Some(reason) = reason else { return };
        match self.0.iter_mut().find(|(existing, _)| existing == reason) {
            Some((_, names)) if names.iter().any(|existing| existing == name) => {}
            Some((_, names)) => names.push(name.to_owned()),
            None => self.0.push((reason.to_owned(), vec![name.to_owned()])),
        }
    }

    fn print(&self) -> anyhow::Result<()> {
        self.0
            .iter()
            .try_for_each(|(reason, names)| output::print_line(format!("{}: {reason}", names.join(", "))))
    }
}

fn print_devices(gpus: &[GpuDevice]) -> anyhow::Result<()> {
    if gpus.is_empty() {
        return output::print_line("no GPU found");
    }
    let mut devices =
        output::table(["GPU", "name", "backend", "capability", "memory used", "memory", "busy", "driver"]);
    for device in gpus {
        let or_unknown = |value: &Option<String>| value.clone().unwrap_or_else(|| "?".into());
        devices.add_row([
            device.id.to_string(),
            device.name.clone(),
            device.backend.to_owned(),
            or_unknown(&device.compute_capability),
            format_memory(device.memory_used),
            format_memory(device.memory_total),
            device.utilization.map_or_else(|| "?".into(), |share| format!("{:.0} %", share * 100.0)),
            or_unknown(&device.driver),
        ]);
    }
    output::print_line(devices)
}

fn format_memory(bytes: Option<u64>) -> String {
    bytes.map_or_else(|| "?".into(), output::format_megabytes)
}

async fn run_tests(settings: &Settings, json: bool) -> anyhow::Result<Exit> {
    let config = Config { dylib_path: settings.onnx_runtime_library(true), ..settings.inference() };
    let pack = prepare_models(settings).await?;
    let report = tokio::task::spawn_blocking(move || inference::self_test(&config, &pack)).await??;
    output::print_json_or(json, &report, || print_tests(&report))?;
    Ok(exit_from_tests(&report.tests, settings.gpu.backend))
}

fn print_tests(report: &SelfTest) -> anyhow::Result<()> {
    output::print_line(format!("ONNX Runtime {}", report.runtime_version))?;
    print_devices(&report.devices)?;
    let mut table: Table = output::table_with_unbroken_columns(
        &[1],
        [
            "device",
            "operation",
            "result",
            "load s",
            "batch",
            "first ms",
            "steady ms",
            "CPU difference",
            "GPU memory",
        ],
    );
    let mut reasons = Reasons::default();
    for test in &report.tests {
        // If all tests of a device have the same reason, the device is listed once.
        let is_same_reason = |other: &DeviceTest| other.device != test.device || other.reason == test.reason;
        match test.operation {
            Some(operation) if !report.tests.iter().all(is_same_reason) => {
                reasons.add(&format!("{} {operation}", test.device), test.reason.as_deref());
            }
            _ => reasons.add(&test.device, test.reason.as_deref()),
        }
        let result = match test.outcome {
            TestResult::Passed => "passed",
            TestResult::Failed => "failed",
            TestResult::Absent => "absent",
        };
        let load = test.load.as_ref();
        let memory_growth =
            load.and_then(|load| Some(load.memory_after?.saturating_sub(load.memory_before?)));
        let run_lines = |format: &dyn Fn(&inference::BatchRun) -> String| {
            test.runs.iter().map(format).collect::<Vec<_>>().join("\n")
        };
        let milliseconds = |seconds: f64| format!("{:.1}", seconds * 1e3);
        table.add_row([
            test.device.clone(),
            test.operation.unwrap_or_default().to_owned(),
            result.to_owned(),
            test.session_seconds.map(|seconds| format!("{seconds:.2}")).unwrap_or_default(),
            run_lines(&|run| run.batch.to_string()),
            run_lines(&|run| milliseconds(run.first_seconds)),
            run_lines(&|run| run.steady_seconds.map(milliseconds).unwrap_or_default()),
            run_lines(&|run| format!("{:.3} %", run.difference * 100.0)),
            memory_growth.map(output::format_megabytes).unwrap_or_default(),
        ]);
    }
    output::print_line(table)?;
    reasons.print()
}

/// Returns the exit status of the tests, depending on the configured `backend`.
fn exit_from_tests(tests: &[DeviceTest], backend: GpuBackend) -> Exit {
    let requested = match backend {
        GpuBackend::Auto => &[],
        backend => Provider::candidates(backend),
    };
    let mut passed = tests.iter().filter(|test| test.outcome == TestResult::Passed);
    if !passed
        .any(|test| requested.is_empty() || requested.iter().any(|provider| provider.name() == test.provider))
    {
        Exit::Failure
    } else if tests.iter().any(|test| test.outcome == TestResult::Failed) {
        Exit::Partial
    } else {
        Exit::Success
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn device_test(provider: &'static str, outcome: TestResult) -> DeviceTest {
        DeviceTest { provider, device: provider.into(), outcome, ..DeviceTest::default() }
    }

    #[test]
    fn gpu_test_exit_code_follows_requested_backend() {
        use TestResult::{Absent, Failed, Passed};
        let without_gpu = [device_test("cpu", Passed), device_test("cuda", Absent)];
        assert_eq!(exit_from_tests(&without_gpu, GpuBackend::Auto), Exit::Success);
        assert_eq!(exit_from_tests(&without_gpu, GpuBackend::Cuda), Exit::Failure);
        let with_failure =
            [device_test("cpu", Passed), device_test("cuda", Passed), device_test("cuda", Failed)];
        assert_eq!(exit_from_tests(&with_failure, GpuBackend::Cuda), Exit::Partial);
        assert_eq!(exit_from_tests(&[device_test("cpu", Failed)], GpuBackend::Auto), Exit::Failure);
    }
}
