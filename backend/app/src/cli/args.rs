//! Declares the command-line arguments.
use crate::config::{Flag, Sources};
use clap::{Args, Parser, Subcommand};
use std::path::PathBuf;

const HELP: &str = "\
{about}

{usage-heading} {usage}

Service:
  up           API, crawler and workers in one process (the default)
  serve        The API alone
  worker       Crawler and workers alone; start as many as you like on one database

Pictures:
  scan         Find and store the faces of folders, files and web pages
  detect       Print the faces of files; needs no database
  bench        Measure operations and the pipeline on CPU and GPU

Set-up:
  models       List, fetch and verify model packs; build TensorRT engines
  gpu          What runs on which device, and why; --test tries every device
  config       Check the configuration
  keys         Make, list and revoke the keys of the API
  jobs         Look at the queue; retry and cancel jobs
  sweep        Remove blobs that nothing names, and report missing ones
  backup       Copy database, blobs and the deletion log into a folder
  restore      Bring a backup back, and delete again what was deleted since
  migrate      Bring the database schema up to date
  openapi      Print the OpenAPI document
  health       Ask a running service whether it is ready
  help         Explain a command

{options}{after-help}";

const EXAMPLES: &str = "\
Examples:
  facecrawl                                     Start everything on http://127.0.0.1:8080
  facecrawl scan ~/Pictures                     Store the faces of a folder
  facecrawl scan https://example.org --max-pages 50
  facecrawl detect --json portrait.jpg          Faces of a file as JSON
  facecrawl detect --draw faces.png group.jpg   Draw what was found
  facecrawl bench --operation pipeline --json - Images and faces per second on this machine
  facecrawl models fetch buffalo_l --accept-license
  facecrawl keys create --collection default --scope analyze,read,search --expires 90d
  facecrawl jobs retry --all --kind scan_image

Exit status: 0 success, 1 failure, 2 wrong usage or configuration, 3 some inputs failed.
Configuration: defaults < facecrawl.toml < .env < environment < flags; `facecrawl config check` shows what is in force.";

/// Crawls pages and folders, finds faces, stores and searches them
#[derive(Debug, Parser)]
#[command(name = "facecrawl", version, help_template = HELP, after_help = EXAMPLES, max_term_width = 110)]
pub struct Cli {
    /// What to do; `up` when nothing is said.
    #[command(subcommand)]
    pub command: Option<Command>,
    /// Values of variables.
    #[command(flatten)]
    pub global: GlobalArgs,
}

/// The commands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// API, crawler and workers in one process (the default)
    Up,
    /// The API alone
    Serve,
    /// Crawler and workers alone; start as many as you like on one database
    Worker,
    /// Find and store the faces of folders, files and web pages
    Scan(super::scan::ScanArgs),
    /// Print the faces of files; needs no database
    Detect(super::detect::DetectArgs),
    /// Measure operations and the whole pipeline on the CPU and on a GPU; needs no database
    Bench(super::bench::BenchArgs),
    /// List, fetch and verify model packs
    Models(super::models::ModelsArgs),
    /// What runs on which device, and why
    Gpu(super::gpu::GpuArgs),
    /// Check the configuration
    Config(super::config::ConfigArgs),
    /// Make, list and revoke the keys of the API
    Keys(super::keys::KeysArgs),
    /// Look at the queue; retry and cancel jobs
    Jobs(super::jobs::JobsArgs),
    /// Remove blobs that nothing names, and say which blobs are missing
    Sweep(super::sweep::SweepArgs),
    /// Copy the database, the blobs and the deletion log into a folder
    Backup(super::backup::BackupArgs),
    /// Bring a backup back into an empty database, and delete again what was deleted since
    Restore(super::restore::RestoreArgs),
    /// Bring the database schema up to date
    Migrate(super::migrate::MigrateArgs),
    /// Compute embeddings of other models anew, from the stored chips
    Reembed(super::reembed::ReembedArgs),
    /// Print the OpenAPI document
    Openapi,
    /// Ask a running service whether it is ready
    Health(super::health::HealthArgs),
}

/// Flags that set variables; every command takes them.
#[derive(Args, Debug)]
#[command(next_help_heading = "Configuration")]
pub struct GlobalArgs {
    /// Print what scripts/gpu-runtime has to bring for this command, and end
    #[arg(long, hide = true)]
    pub(super) gpu_runtime: bool,
    /// Configuration file instead of facecrawl.toml
    #[arg(long, global = true, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Set any variable of .env.example
    #[arg(long, short, global = true, value_name = "NAME=VALUE", value_parser = assignment)]
    set: Vec<(String, String)>,
    /// Address to listen on [HOST]
    #[arg(long, global = true, value_name = "ADDRESS")]
    host: Option<String>,
    /// Port to listen on [PORT]
    #[arg(long, global = true, value_name = "PORT")]
    port: Option<String>,
    /// Postgres to use instead of the private one [DATABASE_URL]
    #[arg(long, global = true, value_name = "URL")]
    database_url: Option<String>,
    /// Folder of the private database and the blobs [DATA_DIR]
    #[arg(long, global = true, value_name = "DIR")]
    data_dir: Option<String>,
    /// Folder of the model files [MODELS_DIR]
    #[arg(long, global = true, value_name = "DIR")]
    models_dir: Option<String>,
    /// Models to use [MODEL_PACK]
    #[arg(long, global = true, value_name = "PACK")]
    model_pack: Option<String>,
    /// Accept the licence of a restricted pack [ACCEPT_LICENSE]
    #[arg(long, global = true)]
    accept_license: bool,
    /// Jobs in work at once [WORKERS]
    #[arg(long, global = true, value_name = "N")]
    workers: Option<String>,
    /// error, warn, info, debug, trace or a filter [LOG_LEVEL]
    #[arg(long, global = true, value_name = "LEVEL")]
    log_level: Option<String>,
    /// text or json [LOG_FORMAT]
    #[arg(long, global = true, value_name = "FORMAT")]
    log_format: Option<String>,
}

fn assignment(text: &str) -> Result<(String, String), String> {
    let (name, value) = text.split_once('=').ok_or("write it as NAME=VALUE")?;
    Ok((name.trim().to_owned(), value.to_owned()))
}

impl GlobalArgs {
    /// Returns the configuration sources of this process.
    pub(super) fn sources(&self) -> Sources {
        let set = self.set.iter().map(|(name, value)| Flag {
            flag: "--set".into(),
            variable: name.clone(),
            value: value.clone(),
        });
        let accepted = self.accept_license.then(|| "true".to_owned());
        let named = [
            ("host", "HOST", &self.host),
            ("port", "PORT", &self.port),
            ("database-url", "DATABASE_URL", &self.database_url),
            ("data-dir", "DATA_DIR", &self.data_dir),
            ("models-dir", "MODELS_DIR", &self.models_dir),
            ("model-pack", "MODEL_PACK", &self.model_pack),
            ("accept-license", "ACCEPT_LICENSE", &accepted),
            ("workers", "WORKERS", &self.workers),
            ("log-level", "LOG_LEVEL", &self.log_level),
            ("log-format", "LOG_FORMAT", &self.log_format),
        ];
        let named = named.into_iter().filter_map(|(flag, variable, value)| {
            let value = value.clone()?;
            Some(Flag { flag: format!("--{flag}"), variable: variable.into(), value })
        });
        Sources::of_process(self.config.clone(), set.chain(named).collect())
    }
}
