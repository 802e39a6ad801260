//! Restricts the files that the child can open, with Landlock.
//!
//! Landlock: <https://docs.kernel.org/userspace-api/landlock.html>.

use super::FileAccess;
use landlock::{
    ABI, Access, AccessFs, AccessNet, CompatLevel, Compatible, PathBeneath, PathFd, Ruleset, RulesetAttr,
    RulesetCreatedAttr, RulesetStatus, Scope,
};
use std::path::Path;

/// Folders with shared libraries, and the loader's list of them.
const LIBRARIES: [&str; 6] =
    ["/lib", "/lib64", "/usr/lib", "/usr/lib64", "/usr/local/lib", "/etc/ld.so.cache"];

/// Allows to execute `program` and to read libraries, and denies every other file, TCP, and signals
/// and abstract sockets to other processes, as far as the kernel can.
///
/// # Errors
/// Returns a message if the kernel has Landlock but rejects the rules, or `program` does not exist.
pub(super) fn restrict(program: &Path) -> Result<FileAccess, String> {
    let rules = || {
        let abi = ABI::V6;
        let execute = AccessFs::Execute | AccessFs::ReadFile;
        let mut rules = Ruleset::default()
            .set_compatibility(CompatLevel::BestEffort)
            .handle_access(AccessFs::from_all(abi))?
            .handle_access(AccessNet::from_all(abi))?
            .scope(Scope::from_all(abi))?
            .create()?
            .add_rule(PathBeneath::new(PathFd::new(program)?, execute))?;
        for path in LIBRARIES {
            let Ok(opened) = PathFd::new(path) else { continue };
            let access = if Path::new(path).is_dir() { execute | AccessFs::ReadDir } else { execute };
            rules = rules.add_rule(PathBeneath::new(opened, access))?;
        }
        Ok::<_, Box<dyn std::error::Error>>(rules.restrict_self()?.ruleset)
    };
    match rules() {
        // Parts that an older kernel lacks (TCP, scopes) are denied by seccomp too.
        Ok(RulesetStatus::FullyEnforced | RulesetStatus::PartiallyEnforced) => Ok(FileAccess::LibrariesOnly),
        Ok(RulesetStatus::NotEnforced) => Ok(FileAccess::ReadOnly),
        Err(error) => Err(format!("cannot restrict access to files: {error}")),
    }
}
