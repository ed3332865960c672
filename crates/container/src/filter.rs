//! Filter of system calls for a container as a whole, in addition to that of each command. It
//! applies to all processes, the launcher included.
//!
//! The filter is a list of allowed calls, so that an unknown call is refused. Calls that commands
//! are never allowed are refused here by the same table (`stockade_launch::filter`). The exceptions
//! are calls that the launcher needs to answer held calls. The engines' own filters refuse those,
//! so they cannot be used.

use std::collections::{BTreeMap, BTreeSet};
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::path::Path;

use serde_json::{Value, json};
use stockade_backend_api::StartError;
use stockade_launch::filter::never_allowed;
use stockade_model::SandboxId;
use stockade_sys::calls;

use crate::accounts::write_shared_file;
use crate::spec::text_of;
use crate::{ContainerEngineKind, cannot};

/// Calls that a command's own filter refuses, and that the launcher makes for it. They copy a
/// socket, find whether threads share their descriptors, and resolve a path.
const LAUNCHER_NEEDS: [&str; 3] = ["pidfd_getfd", "kcmp", "openat2"];
/// Flags of clone(2) for namespaces; unshare(2) also has the time namespace.
const NAMESPACE_FLAGS: u64 = 0x7e02_0000;
const TIME_NAMESPACE_FLAG: u64 = 0x80;
/// Families of sockets: unix, internet, and netlink (to list the own interfaces).
const SOCKET_FAMILIES: [u64; 4] = [1, 2, 10, 16];
/// Execution domains: the default one, PER_LINUX32, without address randomisation, the last two
/// together, and the query.
const EXECUTION_DOMAINS: [u64; 5] = [0, 8, 0x4_0000, 0x4_0008, 0xffff_ffff];
/// ENOSYS on every architecture: the caller then uses older calls.
const NOT_IMPLEMENTED: i32 = 38;

/// Returns the filter in the format of a container engine.
pub(crate) fn seccomp_profile() -> Value {
    let numbers: BTreeMap<i64, &'static str> = calls::list_calls().map(|(name, number)| (number, name)).collect();
    let is_needed = |name: &str| LAUNCHER_NEEDS.contains(&name);
    let refused = never_allowed().filter_map(|(call, errno)| Some((*numbers.get(&call)?, errno)));
    let refused: BTreeMap<&str, u16> = refused.filter(|(name, _)| !is_needed(name)).collect();
    let conditional_calls: BTreeSet<&str> = ["clone", "unshare", "socket", "personality"].into();
    let plain = |name: &str| !refused.contains_key(name) && !conditional_calls.contains(name);
    let allowed: BTreeSet<&str> = calls::list_calls().map(|(name, _)| name).filter(|name| plain(name)).collect();
    let mut rules = vec![json!({"names": allowed, "action": "SCMP_ACT_ALLOW"})];
    rules.push(allow_if("clone", without_bits(NAMESPACE_FLAGS)));
    rules.push(allow_if("unshare", without_bits(NAMESPACE_FLAGS | TIME_NAMESPACE_FLAG)));
    rules.extend(SOCKET_FAMILIES.map(|family| allow_if("socket", equals_condition(family))));
    rules.extend(EXECUTION_DOMAINS.map(|domain| allow_if("personality", equals_condition(domain))));
    let errnos: BTreeSet<u16> = refused.values().copied().collect();
    rules.extend(errnos.into_iter().map(|errno| {
        let names: Vec<&str> = refused.iter().filter(|(_, its)| **its == errno).map(|(name, _)| *name).collect();
        json!({"names": names, "action": "SCMP_ACT_ERRNO", "errnoRet": errno})
    }));
    json!({
        "defaultAction": "SCMP_ACT_ERRNO",
        "defaultErrnoRet": NOT_IMPLEMENTED,
        "architectures": [ARCHITECTURE],
        "syscalls": rules,
    })
}

#[cfg(target_arch = "x86_64")]
const ARCHITECTURE: &str = "SCMP_ARCH_X86_64";
#[cfg(target_arch = "aarch64")]
const ARCHITECTURE: &str = "SCMP_ARCH_AARCH64";

fn allow_if(call: &str, condition: Value) -> Value {
    json!({"names": [call], "action": "SCMP_ACT_ALLOW", "args": [condition]})
}

fn without_bits(mask: u64) -> Value {
    json!({"index": 0, "value": mask, "valueTwo": 0, "op": "SCMP_CMP_MASKED_EQ"})
}

fn equals_condition(value: u64) -> Value {
    json!({"index": 0, "value": value, "op": "SCMP_CMP_EQ"})
}

/// Returns the filter as an option of a container. One engine takes its text, the other the path of
/// a file. The file is in this directory and is the same for all sandboxes of this version.
///
/// # Errors
/// [`StartError`] if no file can be written.
pub(crate) fn security_option(
    kind: ContainerEngineKind,
    directory: &Path,
    id: &SandboxId,
) -> Result<String, StartError> {
    let profile = seccomp_profile().to_string();
    if kind == ContainerEngineKind::Docker {
        return Ok(format!("{OPTION_PREFIX}{profile}"));
    }
    let mut hasher = DefaultHasher::new();
    profile.hash(&mut hasher);
    let name = format!("filter-{:016x}.json", hasher.finish());
    let written = write_shared_file(directory, &name, &profile, id);
    written.map_err(cannot(format!("write the seccomp filter of the container to {}", directory.display())))?;
    Ok(format!("{OPTION_PREFIX}{}", text_of(&directory.join(name))?))
}

const OPTION_PREFIX: &str = "seccomp=";

/// Returns whether the options of a container contain Stockade's filter. The engine that gets a
/// path reports only the path.
pub(crate) fn is_ours(kind: ContainerEngineKind, options: &[String]) -> bool {
    let mut filters = options.iter().filter_map(|option| option.strip_prefix(OPTION_PREFIX));
    let (first, another) = (filters.next(), filters.next());
    let is_ours = |text: &str| match kind {
        ContainerEngineKind::Docker => {
            serde_json::from_str::<Value>(text).is_ok_and(|found| found == seccomp_profile())
        }
        ContainerEngineKind::Podman => text.starts_with('/'),
    };
    first.is_some_and(is_ours) && another.is_none()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(profile: &Value, action: &str) -> BTreeSet<String> {
        let rules = profile["syscalls"].as_array().unwrap().iter();
        let plain = rules.filter(|rule| rule["action"] == action && rule.get("args").is_none());
        plain.flat_map(|rule| rule["names"].as_array().unwrap()).map(|name| name.as_str().unwrap().to_owned()).collect()
    }

    #[test]
    fn input_from_a_file_is_written_once_and_nothing_else_stays() {
        let directory = tempfile::tempdir().unwrap();
        let of = |byte| {
            security_option(ContainerEngineKind::Podman, directory.path(), &SandboxId::from_random([byte; 16])).unwrap()
        };
        let first = of(1);
        assert_eq!(first, of(2));
        let path = first.strip_prefix(OPTION_PREFIX).unwrap();
        let found: Value = serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap();
        assert_eq!(found, seccomp_profile());
        assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 1);
        assert!(is_ours(ContainerEngineKind::Podman, &[first]));
    }

    #[test]
    fn a_container_is_refused_the_calls_of_commands_except_those_of_the_launcher() {
        let profile = seccomp_profile();
        let (allowed, refused) = (names(&profile, "SCMP_ACT_ALLOW"), names(&profile, "SCMP_ACT_ERRNO"));
        assert!(allowed.is_disjoint(&refused));
        for call in ["mount", "bpf", "keyctl", "init_module", "kexec_load", "open_by_handle_at", "setns", "clone3"] {
            assert!(refused.contains(call), "{call}");
        }
        for call in ["read", "execve", "landlock_create_ruleset", "seccomp", "process_vm_readv"] {
            assert!(allowed.contains(call), "{call}");
        }
        assert!(LAUNCHER_NEEDS.iter().all(|call| allowed.contains(*call)));
        // No refused call is omitted because its name is unknown.
        let known: BTreeSet<i64> = calls::list_calls().map(|(_, number)| number).collect();
        for (call, _) in never_allowed() {
            assert!(known.contains(&call), "{call}");
        }
    }

    #[test]
    fn a_container_with_another_filter_is_none_of_ours() {
        let own = security_option(ContainerEngineKind::Docker, Path::new("/nowhere"), &SandboxId::from_random([1; 16]))
            .unwrap();
        let with = |options: &[&str]| options.iter().map(|&text| text.to_owned()).collect::<Vec<_>>();
        assert!(is_ours(ContainerEngineKind::Docker, &with(&["no-new-privileges", &own])));
        for other in [vec![], vec!["seccomp=unconfined"], vec!["seccomp={}"], vec![&own[..], "seccomp=unconfined"]] {
            assert!(!is_ours(ContainerEngineKind::Docker, &with(&other)), "{other:?}");
        }
        assert!(is_ours(ContainerEngineKind::Podman, &with(&["seccomp=/tmp/x"])));
        assert!(!is_ours(ContainerEngineKind::Podman, &with(&["seccomp=unconfined"])));
        assert!(!is_ours(ContainerEngineKind::Podman, &with(&["no-new-privileges"])));
    }
}
