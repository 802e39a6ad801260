//! Defines the command line: the commands, and the flags that every command accepts. The arguments
//! of a command are beside it.
use crate::config::{Flag, Sources};
use clap::{Args, Parser, Subcommand};
use std::path::PathBuf;

const HELP: &str = "\
{about}

{usage-heading} {usage}

Service:
  up           Run the API, the crawler and workers in one process (the default)
  serve        Run only the API
  worker       Run only the crawler and workers; any number of them can share a database

Images:
  scan         Find and store the faces of folders, files and web pages
  enrol        Enrol many people from folders or a list
  detect       Print the faces of files; needs no database
  stream       List the cameras of STREAMS_FILE, and check what one sends
  bench        Measure the speed of operations and of the pipeline on CPU and GPU

Setup and maintenance:
  models       List, fetch and verify model packs; build TensorRT engines
  doctor       Check the installation, and explain how to fix problems
  gpu          Print the device of each operation and the reason; --test tests every device
  config       Check the configuration
  keys         Create, list and revoke API keys
  jobs         List, retry and cancel the jobs of the queue
  watch        List and create watchlists, and test their webhooks
  sweep        Delete blobs that no row references, and report missing blobs
  backup       Copy the database, the blobs and the deletion log into a folder
  restore      Restore a backup, and repeat the deletions that were made after it
  migrate      Update the database schema
  index        Show, build and verify the search index
  reembed      Recompute embeddings of other models, from the stored chips
  openapi      Print the OpenAPI document
  completions  Print the completions for a shell
  man          Write the manual pages into a folder
  health       Check whether a running service is ready
  help         Explain a command

{options}{after-help}";

const EXAMPLES: &str = "\
Examples:
  facecrawl                                     Start everything on http://127.0.0.1:8080
  facecrawl scan ~/Pictures                     Store the faces of a folder
  facecrawl scan https://example.org --max-pages 50
  facecrawl enrol ~/People --dry-run            Check the images of people, one folder each
  facecrawl detect --json portrait.jpg          Faces of a file as JSON
  facecrawl detect --draw faces.png group.jpg   Draw the faces of a file
  facecrawl bench --operation pipeline --json - Images and faces per second on this machine
  facecrawl models fetch buffalo_l --accept-license
  facecrawl keys create --collection default --scope analyze,read,search --expires 90d
  facecrawl jobs retry --all --kind scan_image
  facecrawl watch add Guests --subject \"Ada Example\" --purpose \"Greet the guests\"

Exit status: 0 success, 1 failure, 2 invalid arguments or configuration, 3 some inputs failed.
Configuration: defaults < facecrawl.toml < .env < environment < flags; `facecrawl config check` prints the values in use.";

/// Crawls pages and folders, finds faces, stores and searches them
#[derive(Debug, Parser)]
#[command(name = "facecrawl", version, help_template = HELP, after_help = EXAMPLES, max_term_width = 110)]
pub struct Cli {
    /// The command to run. `None` means `up`.
    #[command(subcommand)]
    pub command: Option<Command>,
    /// Flags that set variables.
    #[command(flatten)]
    pub global: GlobalArgs,
}

/// The commands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Run the API, the crawler and workers in one process (the default)
    Up,
    /// Run only the API
    Serve,
    /// Run only the crawler and workers; any number of them can share a database
    Worker,
    /// Find and store the faces of folders, files and web pages
    Scan(super::scan::ScanArgs),
    /// Enrol many people from folders or a list
    ///
    /// Each image must show one good face. The command reports each file that is not enrolled, with
    /// the reason. A person is found by the name, or created. Repeating the command enrols nothing
    /// twice.
    Enrol(super::enrol::EnrolArgs),
    /// List the cameras of STREAMS_FILE, and check what one sends
    Stream(super::stream::StreamArgs),
    /// Print the faces of files; needs no database
    Detect(super::detect::DetectArgs),
    /// Measure the speed of operations and of the pipeline on CPU and GPU; needs no database
    Bench(super::bench::BenchArgs),
    /// List, fetch and verify model packs; build TensorRT engines
    Models(super::models::ModelsArgs),
    /// Check the installation; explain each problem, its consequence and how to fix it
    Doctor(super::doctor::DoctorArgs),
    /// Print the device of each operation and the reason
    Gpu(super::gpu::GpuArgs),
    /// Check the configuration
    Config(super::config::ConfigArgs),
    /// Create, list and revoke API keys
    Keys(super::keys::KeysArgs),
    /// List, retry and cancel the jobs of the queue
    Jobs(super::jobs::JobsArgs),
    /// List and create watchlists, and test their webhooks
    Watch(super::watch::WatchArgs),
    /// Delete blobs that no row references, and report missing blobs
    Sweep(crate::cli::maintenance::SweepArgs),
    /// Copy the database, the blobs and the deletion log into a folder
    ///
    /// The service may keep running. If the folder already contains a backup, the command updates
    /// it: it copies only new blobs, and deletes those that no row references any more. Write the
    /// deletion log often (--only-erasures) and keep a copy in a different place: `restore` repeats
    /// the deletions that it lists. The backup does not contain SUPPRESSION_SECRET.
    Backup(super::backup::BackupArgs),
    /// Restore a backup into an empty database, and repeat the deletions that were made after it
    ///
    /// Stop every process of the service first. The command deletes the faces, images, people and
    /// collections that the deletion logs list, before the service can serve them. Suppressions
    /// remain in force, and revoked keys remain revoked. Only blobs that a row still references are
    /// copied. If the command was interrupted, continue with --without-database.
    Restore(crate::cli::backup::RestoreArgs),
    /// Update the database schema
    Migrate(crate::cli::maintenance::MigrateArgs),
    /// Show, build and verify the search index
    Index(super::index::IndexArgs),
    /// Recompute embeddings of other models with the current model, from the stored chips
    ///
    /// Search finds only faces whose embedding is of the current model (MODEL_PACK). The command
    /// replaces embeddings batch by batch. If it is interrupted, the next run processes the
    /// remaining faces. Faces without a chip keep their embedding and are listed.
    Reembed(crate::cli::maintenance::ReembedArgs),
    /// Print the completions for a shell
    Completions(super::shell::CompletionsArgs),
    /// Write the manual pages into a folder
    Man(super::shell::ManArgs),
    /// Print the OpenAPI document
    Openapi,
    /// Check whether a running service is ready
    Health(crate::cli::up::HealthArgs),
}

/// Flags that set variables. Every command accepts them.
#[derive(Args, Debug)]
#[command(next_help_heading = "Configuration")]
pub struct GlobalArgs {
    /// Print the GPU runtime that this command needs, and exit
    #[arg(long, hide = true)]
    pub(super) gpu_runtime: bool,
    /// Configuration file instead of facecrawl.toml
    #[arg(long, global = true, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Set any variable of .env.example
    #[arg(long, short, global = true, value_name = "NAME=VALUE", value_parser = parse_assignment)]
    set: Vec<(String, String)>,
    /// Address to listen on [HOST]
    #[arg(long, global = true, value_name = "ADDRESS")]
    host: Option<String>,
    /// Port to listen on [PORT]
    #[arg(long, global = true, value_name = "PORT")]
    port: Option<String>,
    /// URL of a Postgres database to use instead of the private one [DATABASE_URL]
    #[arg(long, global = true, value_name = "URL")]
    database_url: Option<String>,
    /// Folder of the private Postgres and of the blobs [DATA_DIR]
    #[arg(long, global = true, value_name = "DIR")]
    data_dir: Option<String>,
    /// Folder of the model files [MODELS_DIR]
    #[arg(long, global = true, value_name = "DIR")]
    models_dir: Option<String>,
    /// Model pack to use [MODEL_PACK]
    #[arg(long, global = true, value_name = "PACK")]
    model_pack: Option<String>,
    /// Accept the licence of a restricted pack [ACCEPT_LICENSE]
    #[arg(long, global = true)]
    accept_license: bool,
    /// Maximum number of concurrent pages, and of concurrent images [WORKERS]
    #[arg(long, global = true, value_name = "N")]
    workers: Option<String>,
    /// Log level: error, warn, info, debug, trace, or a filter [LOG_LEVEL]
    #[arg(long, global = true, value_name = "LEVEL")]
    log_level: Option<String>,
    /// Log format: text or json [LOG_FORMAT]
    #[arg(long, global = true, value_name = "FORMAT")]
    log_format: Option<String>,
}

fn parse_assignment(text: &str) -> Result<(String, String), String> {
    let (name, value) = text.split_once('=').ok_or("it must have the form NAME=VALUE")?;
    Ok((name.trim().to_owned(), value.to_owned()))
}

impl GlobalArgs {
    pub(super) fn sources(&self) -> Sources {
        let set_flags = self.set.iter().map(|(name, value)| Flag {
            flag: "--set".into(),
            variable: name.clone(),
            value: value.clone(),
        });
        let accepted = self.accept_license.then(|| "true".to_owned());
        let named_flags = [
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
        let named_flags = named_flags.into_iter().filter_map(|(flag, variable, value)| {
            let value = value.clone()?;
            Some(Flag { flag: format!("--{flag}"), variable: variable.into(), value })
        });
        Sources::from_process(self.config.clone(), set_flags.chain(named_flags).collect())
    }
}
