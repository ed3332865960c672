//! Powers of a run: grants add exactly themselves (L3) and never reach what
//! governs the run (L7).

#![allow(clippy::unwrap_used, reason = "what cannot be had fails the test")]

use std::path::Path;

use stockade_model::{Grant, NetworkAccess, PolicyVerdict, Profile, RawText};
use stockade_policy::mounts::MountSnapshot;
use stockade_policy::{
    OwnDirectories, PolicySettings, ResolveError, complete_grants, effective_environment, resolve_profile,
};

fn settings() -> PolicySettings {
    let own = OwnDirectories {
        configuration: vec!["/etc/stockade".into(), "/home/u/.config/stockade".into()],
        state: vec!["/home/u/.local/state/stockade".into()],
        ..OwnDirectories::default()
    };
    PolicySettings::from_layers(Path::new("/home/u"), own, &[]).unwrap()
}

fn resolve(name: &str, workspace: &str, grants: &[&str]) -> Result<Profile, ResolveError> {
    let grants: Vec<Grant> = grants.iter().map(|text| text.parse().unwrap()).collect();
    resolve_profile(&settings(), name, Path::new(workspace), &grants)
}

/// What a grant changes, as `-`removed and `+`added entries.
#[track_caller]
fn check(grant: &str, expected: &[&str]) {
    let before = resolve("workspace", "/home/u/work", &[]).unwrap();
    let after = resolve("workspace", "/home/u/work", &[grant]).unwrap();
    let entries = |profile: &Profile| -> Vec<String> {
        let f = &profile.filesystem;
        let paths = [("write", &f.write), ("hide", &f.hide), ("reveal", &f.reveal), ("socket", &f.sockets)];
        let mut all: Vec<String> =
            paths.iter().flat_map(|(key, list)| list.iter().map(move |path| format!("{key} {path}"))).collect();
        all.extend(f.protect.iter().map(|name| format!("protect {name}")));
        all.extend(profile.environment.pass.iter().map(|name| format!("pass {name}")));
        all.extend(profile.environment.drop.iter().map(|entry| format!("drop {}", entry.pattern)));
        all
    };
    let (old, new) = (entries(&before), entries(&after));
    let mut changes: Vec<String> = old.iter().filter(|e| !new.contains(e)).map(|e| format!("-{e}")).collect();
    changes.extend(new.iter().filter(|e| !old.contains(e)).map(|e| format!("+{e}")));
    assert_eq!(changes, expected, "{grant}");
    assert_eq!((after.sandboxed, after.network, after.limits), (before.sandboxed, before.network, before.limits));
}

#[test]
fn a_grant_adds_exactly_itself() {
    check("write /srv/data", &["+write /srv/data"]);
    check("write /home/u/work/src", &[]);
    check("write /home/u/work/.git", &["+write /home/u/work/.git"]);
    check("write /home/u/work/sub/.git/hooks", &["+write /home/u/work/sub/.git/hooks"]);
    check("read /home/u/.kube", &["-hide /home/u/.kube"]);
    check("read /home/u/.ssh/known_hosts", &["+reveal /home/u/.ssh/known_hosts"]);
    check("read /usr/share", &[]);
    // It was readable before, and what lies hidden in it stays hidden.
    check("read /home/u", &[]);
    check("read /", &[]);
    check("socket /run/docker.sock", &["+socket /run/docker.sock"]);
    check("env GITHUB_TOKEN", &["+pass GITHUB_TOKEN"]);
    check("env BASH_ENV", &["-drop BASH_ENV", "+pass BASH_ENV"]);
    check("env PATH", &[]);
    for elsewhere in ["connect pypi.org:443", "listen 80", "exec /bin/x", "memory 8GiB"] {
        check(elsewhere, &[]);
    }
}

#[test]
fn a_name_that_begins_in_a_granted_directory_is_granted_by_itself() {
    let profile =
        resolve("workspace", "/home/u/work", &["write /home/u/work/.git", "write /home/u/work/.git/hooks"]).unwrap();
    let written: Vec<String> = profile.filesystem.write.iter().map(ToString::to_string).collect();
    assert_eq!(written, ["/home/u/work", "/home/u/work/.git", "/home/u/work/.git/hooks"]);
}

#[test]
fn a_granted_variable_passes_alone() {
    let caller = ["GITHUB_TOKEN", "GITLAB_TOKEN", "BASH_ENV"].map(|name| (name.to_owned(), RawText::from("v"))).into();
    let profile = resolve("workspace", "/home/u/work", &["env GITHUB_TOKEN"]).unwrap();
    let names: Vec<String> = effective_environment(&profile, &caller).into_keys().collect();
    assert_eq!(names, ["GITHUB_TOKEN", "TMPDIR", "npm_config_update_notifier"]);
}

#[test]
fn policy_files_are_inaccessible() {
    for grant in [
        "write /home/u/.config/stockade/config.toml",
        "write /home/u/.config/stockade",
        "write /home/u/.config",
        "write /home/u",
        "write /",
        "write /etc",
        "write /etc/stockade/config.toml",
        "write /home/u/.local",
        "write /home/u/work/.stockade.toml",
        "write /home/u/work/.Stockade/config.toml",
        "write /home/u/work/sub/.stockade",
        "read /home/u/.local/state/stockade",
        "read /home/u/.local/state/stockade/audit.jsonl",
        "socket /home/u/.local/state/stockade/daemon.sock",
    ] {
        let refused = resolve("workspace", "/home/u/work", &[grant]);
        assert!(matches!(refused, Err(ResolveError::OwnFiles { .. })), "{grant}: {refused:?}");
    }
    for workspace in ["/", "/home", "/home/u", "/home/u/.config", "/etc"] {
        assert!(matches!(resolve("workspace", workspace, &[]), Err(ResolveError::OwnFiles { .. })), "{workspace}");
        assert!(resolve("read-only", workspace, &[]).is_ok(), "{workspace}");
    }
    let hide = resolve("read-only", "/home/u/work", &[]).unwrap().filesystem.hide;
    assert!(hide.contains(&"/home/u/.local/state/stockade".into()));
}

#[test]
fn hidden_files_are_written_only_if_readable() {
    let write = "write /home/u/.npmrc";
    assert!(matches!(resolve("workspace", "/home/u/work", &[write]), Err(ResolveError::HiddenWrite { .. })));
    let profile = resolve("workspace", "/home/u/work", &[]).unwrap();
    let grants = complete_grants(&profile, &[write.parse().unwrap(), "write /srv/x".parse().unwrap()]);
    let shown: Vec<String> = grants.iter().map(Grant::to_string).collect();
    assert_eq!(shown, ["read /home/u/.npmrc", write, "write /srv/x"]);
    let with = resolve_profile(&settings(), "workspace", Path::new("/home/u/work"), &grants).unwrap();
    assert!(with.filesystem.write.contains(&"/home/u/.npmrc".into()));
}

#[test]
fn a_failed_creation_is_reported() {
    let shown = |name: &str, workspace: &str| resolve(name, workspace, &[]).unwrap_err().to_string();
    assert!(shown("workspac", "/w").ends_with("hint: did you mean `workspace`?"));
    assert!(shown("\u{1b}x", "/w").starts_with("there is no profile `\\u{1b}x`"));
    assert!(shown("workspace", "w").contains("not an absolute path"));
    assert!(shown("workspace", "/w/../x").contains("not an absolute path"));
    assert!(shown("workspace", "/home/u/.ssh/work").contains("hidden"));
}

#[test]
fn built_in_profiles() {
    let read_only = resolve("read-only", "/w", &[]).unwrap();
    assert!(read_only.sandboxed && read_only.filesystem.write.is_empty() && read_only.network == NetworkAccess::None);
    assert_eq!(read_only.environment.set["GIT_OPTIONAL_LOCKS"], "0".into());
    let workspace = resolve("workspace", "/w", &[]).unwrap();
    assert_eq!(workspace.filesystem.write, ["/w".into()]);
    for secret in ["/home/u/.ssh", "/home/u/.aws", "/home/u/.netrc", "/etc/shadow"] {
        assert!(workspace.filesystem.hide.contains(&secret.into()), "{secret}");
    }
    let host = resolve("host", "/w", &["write /x"]).unwrap();
    assert!(!host.sandboxed && host.network == NetworkAccess::Host);
    let caller = [("GITHUB_TOKEN".to_owned(), RawText::from("v"))].into();
    assert_eq!(effective_environment(&host, &caller).len(), 1);
}

/// As one that stands on the command line, so one that is agreed to while a call
/// waits.
#[test]
fn no_approval_of_a_power_over_policy_files() {
    let settings = settings();
    let refused = |power: &str| settings.decide_governed(Path::new("/home/u/work"), &power.parse().unwrap());
    for power in [
        "write /home/u/.config/stockade/config.toml",
        "write /home/u/.config",
        "write /etc/stockade/managed.toml",
        "write /home/u/.local/state/stockade/audit/0.jsonl",
        "write /home/u/work/.stockade.toml",
        "write /home/u/work/sub/.stockade/rules.toml",
        "read /home/u/.local/state/stockade/approvals.db",
        "socket /home/u/.local/state/stockade/runs/x/control",
    ] {
        let decision = refused(power).unwrap_or_else(|| panic!("{power} can be had"));
        assert_eq!(decision.verdict, PolicyVerdict::Deny, "{power}");
        assert!(resolve("workspace", "/home/u/work", &[power]).is_err(), "{power}");
    }
    for power in ["write /home/u/.config/other", "read /home/u/.config/stockade/config.toml", "socket /run/x"] {
        assert_eq!(refused(power), None, "{power}");
    }
}

/// `/home` has a second mount, and so has the directory of the state.
fn mounted() -> PolicySettings {
    let table = "1 0 8:1 / / rw - ext4 /dev/a rw\n2 1 8:2 / /home rw - ext4 /dev/b rw\n\
        3 1 8:2 / /alt rw - ext4 /dev/b rw\n4 1 8:2 /u/.local/state/stockade/audit /log rw - ext4 /dev/b rw\n";
    settings().with_mounts(MountSnapshot::parse(table.as_bytes()))
}

#[test]
fn another_mount_of_a_hidden_path_is_hidden() {
    let settings = mounted();
    let workspace = Path::new("/alt/u/work");
    let with = |grants: &[&str]| {
        let grants: Vec<Grant> = grants.iter().map(|text| text.parse().unwrap()).collect();
        resolve_profile(&settings, "workspace", workspace, &grants)
    };
    let hide = with(&[]).unwrap().filesystem.hide;
    for path in ["/alt/u/.ssh", "/home/u/.ssh", "/alt/u/.local/state/stockade", "/log"] {
        assert!(hide.contains(&path.into()), "{path}");
    }
    // A power over one of the paths is none over the other.
    let hide = with(&["read /home/u/.kube"]).unwrap().filesystem.hide;
    assert!(!hide.contains(&"/home/u/.kube".into()) && hide.contains(&"/alt/u/.kube".into()));
    assert!(matches!(with(&["write /alt/u/.npmrc"]), Err(ResolveError::HiddenWrite { .. })));
    let hidden = resolve_profile(&settings, "workspace", Path::new("/alt/u/.ssh/x"), &[]);
    assert!(matches!(hidden, Err(ResolveError::HiddenWorkspace { .. })), "{hidden:?}");
    // What an answer may keep is judged by every path.
    for (power, is_guarded) in [
        ("read /alt/u/.ssh/id", true),
        ("write /alt/u", true),
        ("write /alt/u/.npmrc", true),
        ("write /alt/u/project", false),
    ] {
        assert_eq!(settings.find_guarded_name(&power.parse().unwrap()).is_some(), is_guarded, "{power}");
    }
    // A persistent sandbox has the mounts that it was made with.
    let settings = settings.without_mounts();
    assert_eq!(settings, self::settings());
}

#[test]
fn another_mount_of_a_policy_file_is_inaccessible() {
    let settings = mounted();
    for workspace in ["/alt", "/alt/u", "/alt/u/.config", "/alt/u/.config/stockade/x"] {
        let error = resolve_profile(&settings, "workspace", Path::new(workspace), &[]).unwrap_err();
        let ResolveError::OwnByMount { own, .. } = &error else { panic!("{workspace}: {error:?}") };
        assert!(own.starts_with("/home/u/."), "{error}");
        assert!(error.to_string().contains("by another mount\nhint: "), "{error}");
    }
    for power in ["write /alt/u/.config", "read /alt/u/.local/state/stockade/x", "socket /log/x"] {
        let grant: Grant = power.parse().unwrap();
        let decision = settings.decide_governed(Path::new("/alt/u/work"), &grant);
        assert_eq!(decision.map(|decision| decision.verdict), Some(PolicyVerdict::Deny), "{power}");
        assert!(resolve_profile(&settings, "workspace", Path::new("/alt/u/work"), &[grant]).is_err(), "{power}");
    }
}

#[test]
fn nothing_runs_where_the_mounts_are_unknown() {
    let settings = settings().with_mounts(MountSnapshot::parse(b"nonsense"));
    let error = resolve_profile(&settings, "workspace", Path::new("/home/u/work"), &[]).unwrap_err();
    assert!(matches!(error, ResolveError::Mounts(_)), "{error}");
    assert!(resolve_profile(&settings, "host", Path::new("/home/u/work"), &[]).is_ok());
}
