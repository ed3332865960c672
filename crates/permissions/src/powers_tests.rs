//! The decision as a table, and its properties.

use std::collections::BTreeMap;

use proptest::prelude::*;
use stockade_model::{
    AttemptPlan, DEFAULT_PROTECTED_NAMES, EnvironmentRules, FilesystemAccess, IsolationLevel, Limits, NetworkAccess,
    Profile, RequestId,
};

use super::*;

fn plan(write: &[&str], grants: &[&str]) -> AttemptPlan {
    AttemptPlan {
        request: RequestId::from_random([1; 16]),
        attempt: 1,
        argv: vec!["true".into()],
        environment: BTreeMap::new(),
        cwd: "/ws".into(),
        workspace: "/ws".into(),
        profile: Profile {
            name: "workspace".to_owned(),
            sandboxed: true,
            filesystem: FilesystemAccess {
                write: write.iter().map(|p| RawText::from(*p)).collect(),
                hide: vec!["/home/u/.ssh".into(), "/ws/secret".into()],
                reveal: vec!["/home/u/.ssh/known_hosts".into()],
                protect: DEFAULT_PROTECTED_NAMES.iter().map(|n| (*n).to_owned()).collect(),
                sockets: vec!["/run/agent.sock".into()],
                stage: false,
                undo_bytes: None,
                trace: false,
                caches: Vec::new(),
            },
            exec: stockade_model::ExecRules::default(),
            network: NetworkAccess::None,
            egress: Default::default(),
            environment: EnvironmentRules::default(),
            limits: Limits::default(),
        },
        grants: grants.iter().map(|g| g.parse().unwrap()).collect(),
        effects: Vec::new(),
        level: IsolationLevel::Full,
        backend: "native".to_owned(),
    }
}

fn powers(write: &[&str], grants: &[&str]) -> AttemptPermissions {
    AttemptPermissions::new(&plan(write, grants), ["/tmp", "/var/tmp"])
}

fn nothing(_: &Path) -> bool {
    false
}

fn text(verdict: &PermissionVerdict) -> String {
    match verdict {
        PermissionVerdict::Allow => "allow".to_owned(),
        PermissionVerdict::Private => "private".to_owned(),
        PermissionVerdict::Refuse(PermissionRefusal { rule, grant }) => {
            format!("{rule} | {}", grant.as_ref().map_or("-".to_owned(), ToString::to_string))
        }
    }
}

#[track_caller]
fn check(powers: &AttemptPermissions, operation: DeniedOperation, object: &str, expected: &str) {
    let verdict = powers.decide_operation(operation, Path::new(object), &nothing);
    assert_eq!(text(&verdict), expected, "{operation:?} {object}");
}

#[test]
fn decisions() {
    use DeniedOperation::{Create, Link, Metadata, Mkdir, Remove, Rename, Write};
    let p = powers(&["/ws"], &[]);
    for (operation, object, expected) in [
        (Create, "/ws/a", "allow"),
        (Write, "/ws/d/e/f", "allow"),
        (Write, "/wsx/a", "outside every writable root | write /wsx/a"),
        (Create, "/", "outside every writable root | write /"),
        (Create, "/tmp/a", "private"),
        (Mkdir, "/tmp/.git", "private"),
        (Create, "/ws/.git", "protected name: .git | write /ws/.git"),
        (Create, "/ws/.git/x", "protected name: .git | write /ws/.git"),
        (Create, "/ws/.git/hooks/x", "protected name: .git/hooks | write /ws/.git/hooks"),
        (Create, "/ws/a/b/.GIT/Hooks/x", "protected name: .git/hooks | write /ws/a/b/.GIT/Hooks"),
        (Create, "/ws/.config/fish/x", "protected name: .config/fish | write /ws/.config/fish"),
        (Create, "/ws/.config/other", "allow"),
        (Create, "/ws/hooks/x", "allow"),
        (Create, "/ws/.gitignore", "allow"),
        (Create, "/ws/x.git", "allow"),
        (Create, "/ws/.vscode/tasks.json", "protected name: .vscode | write /ws/.vscode"),
        (Create, "/ws/.g\u{200c}it/x", "protected name: .git | write /ws/.g\\u{200c}it"),
        (Create, "/ws/.git.", "protected name: .git | write /ws/.git."),
        (Create, "/ws/\u{212a}", "allow"),
        (Create, "/ws/.\u{212a}shrc", "protected name: .kshrc | write /ws/.\u{212a}shrc"),
        (Remove, "/ws", "the workspace itself stays in place | -"),
        (Rename, "/ws", "the workspace itself stays in place | -"),
        (Metadata, "/ws", "allow"),
        (Write, "/proc/7/oom_score_adj", "the kernel's own files | -"),
        (Write, "/ws/secret", "hidden from runs | read /ws/secret"),
        (Write, "/home/u/.ssh/id", "hidden from runs | read /home/u/.ssh/id"),
        (Write, "/home/u/.ssh/known_hosts", "outside every writable root | write /home/u/.ssh/known_hosts"),
        (Link, "/ws/.stockade-install-1", "a file that Stockade is renaming to its final name | -"),
        (Link, "/ws/a/.Stockade-INSTALL-1", "a file that Stockade is renaming to its final name | -"),
        (Write, "/ws/.stockade-undo-req_1-0", "a file that Stockade is renaming to its final name | -"),
        (Link, "/ws/.stockade-incoming-1/a/b", "a file that Stockade is renaming to its final name | -"),
        (Create, "/ws/stockade-incoming-1", "allow"),
    ] {
        check(&p, operation, object, expected);
    }
}

#[test]
fn a_grant_ends_at_the_next_unit() {
    let p = powers(&["/ws"], &["write /ws/.git", "write /ws/n/.git/hooks", "write /home/u/.bashrc"]);
    check(&p, DeniedOperation::Create, "/ws/.git/index.lock", "allow");
    check(&p, DeniedOperation::Create, "/ws/.git", "allow");
    check(&p, DeniedOperation::Create, "/ws/.git/config", "protected name: .git/config | write /ws/.git/config");
    check(&p, DeniedOperation::Create, "/ws/n/.git/hooks/x", "allow");
    check(&p, DeniedOperation::Create, "/ws/n/.git/x", "protected name: .git | write /ws/n/.git");
    check(&p, DeniedOperation::Write, "/home/u/.bashrc", "allow");
    check(&p, DeniedOperation::Write, "/home/u/.profile", "outside every writable root | write /home/u/.profile");
}

#[test]
fn directories_above_a_root_can_be_made() {
    let p = powers(&["/ws"], &["write /home/u/.config/tool", "write /home/u/.ssh/x/y", "write /home/u/n/.git/hooks"]);
    check(&p, DeniedOperation::Mkdir, "/home/u/.config", "allow");
    check(&p, DeniedOperation::Create, "/home/u/.config", "outside every writable root | write /home/u/.config");
    check(&p, DeniedOperation::Rename, "/home/u/.config", "outside every writable root | write /home/u/.config");
    check(
        &p,
        DeniedOperation::Mkdir,
        "/home/u/.config/other",
        "outside every writable root | write /home/u/.config/other",
    );
    check(&p, DeniedOperation::Mkdir, "/home/u/.ssh/x", "hidden from runs | read /home/u/.ssh/x");
    check(&p, DeniedOperation::Mkdir, "/home/u/n", "allow");
    check(&p, DeniedOperation::Mkdir, "/home/u/n/.git", "outside every writable root | write /home/u/n/.git");
}

#[test]
fn a_root_at_the_top_does_not_reach_the_kernels_files() {
    let p = powers(&["/"], &[]);
    check(&p, DeniedOperation::Write, "/etc/x", "allow");
    check(&p, DeniedOperation::Write, "/proc/1/comm", "the kernel's own files | -");
    check(&p, DeniedOperation::Create, "/a/.git/x", "protected name: .git | write /a/.git");
}

#[test]
fn a_workspace_in_a_private_tree_keeps_its_rules() {
    let p = powers(&["/tmp/x/ws"], &[]);
    check(&p, DeniedOperation::Create, "/tmp/x/ws/.git", "protected name: .git | write /tmp/x/ws/.git");
    check(&p, DeniedOperation::Create, "/tmp/x/.git", "private");
}

#[test]
fn files_with_rules_from_their_directory_stay() {
    let p = powers(&["/ws", "/tmp/x/y/ws", "/ws/a/b"], &[]);
    for (object, expected) in [
        ("/home/u", Some("a directory that holds hidden credentials stays in place")),
        ("/home/u/.ssh/id", None),
        ("/tmp/x", Some("a directory that holds a writable root stays in place")),
        ("/tmp/x/y", Some("a directory that holds a writable root stays in place")),
        ("/tmp/x/y/ws", None),
        ("/tmp/x/z", None),
        ("/tmp/x/y/w", None),
        ("/ws/a", None),
    ] {
        assert_eq!(p.move_refusal(Path::new(object)).map(|r| r.rule), expected.map(str::to_owned), "{object}");
    }
}

#[test]
fn a_replaced_object_inside_is_detected() {
    let p = powers(&["/ws"], &[]);
    for other in ["/", "/home/u", "/home/u/.ssh", "/tmp/x", "/dev", "/proc"] {
        assert!(p.is_seen_otherwise(Path::new(other)), "{other}");
    }
    for same in ["/ws/d", "/home/u/.cache", "/homes", "/srv"] {
        assert!(!p.is_seen_otherwise(Path::new(same)), "{same}");
    }
}

#[test]
fn powers_that_are_added_hold_at_once() {
    let mut p = powers(&["/ws"], &[]);
    let add = ["write /o/d", "write /o/d", "socket /o/s"].map(|g| g.parse().unwrap());
    p.extend(&add, IsolationLevel::Full);
    check(&p, DeniedOperation::Create, "/o/d/a", "allow");
    check(&p, DeniedOperation::Create, "/o/d/.git/a", "protected name: .git | write /o/d/.git");
    check(&p, DeniedOperation::Create, "/o/e", "outside every writable root | write /o/e");
    assert_eq!(text(&p.decide_socket(Path::new("/o/s"))), "allow");
    let attachment = |p: &AttemptPermissions, path: &[u8]| (p.added.covers(path), p.is_unattached(path));
    assert_eq!(attachment(&p, b"/o/d/a"), (true, true));
    assert_eq!(attachment(&p, b"/ws/a"), (false, false));
    p.extend(&["write /r".parse().unwrap()], IsolationLevel::Restricted);
    assert_eq!(attachment(&p, b"/r/a"), (true, false));
}

#[test]
fn sockets() {
    let p = powers(&["/ws"], &["socket /run/b.sock"]);
    for (object, expected) in [
        ("/run/agent.sock", "allow"),
        ("/run/b.sock", "allow"),
        ("/tmp/s", "private"),
        ("/ws/s", "a unix socket of the host | socket /ws/s"),
        ("/run/docker.sock", "a unix socket of the host | socket /run/docker.sock"),
    ] {
        assert_eq!(text(&p.decide_socket(Path::new(object))), expected);
    }
}

#[track_caller]
fn repository(operation: DeniedOperation, object: &str, there: &[&str], refused_at: Option<&str>) {
    let probe = |p: &Path| there.iter().any(|t| Path::new(t) == p);
    let verdict = powers(&["/ws"], &[]).decide_operation(operation, Path::new(object), &probe);
    let expected = refused_at.map_or("allow".to_owned(), |unit| {
        format!("a repository that is not called .git, or a part of one | write {unit}")
    });
    assert_eq!(text(&verdict), expected, "{operation:?} {object} {there:?}");
}

#[test]
fn bare_repositories_under_any_name() {
    use DeniedOperation::{Create, Mkdir, Rename, Write};
    let whole = ["/ws/r/HEAD", "/ws/r/objects", "/ws/r/refs", "/ws/r/config"];
    repository(Write, "/ws/r/config", &whole, Some("/ws/r/config"));
    repository(Create, "/ws/r/hooks/post-update", &whole, Some("/ws/r/hooks"));
    repository(Create, "/ws/r/objects/ab/cd", &whole, None);
    repository(Rename, "/ws/r/HEAD", &whole, None);
    repository(Create, "/ws/r/config", &whole[..2], None);
    repository(Mkdir, "/ws/r/refs", &[whole[0], whole[1], whole[3]], Some("/ws/r/refs"));
    repository(Mkdir, "/ws/r/refs", &whole[..2], Some("/ws/r/refs"));
    repository(Mkdir, "/ws/r/refs", &whole[..1], None);
    repository(Rename, "/ws/r/config", &whole[..3], Some("/ws/r/config"));
}

#[test]
fn contents_of_a_directory_grant() {
    let p = powers(&["/ws"], &[]);
    let mut carried = p.units_carried_by(Path::new("/ws/.Config"));
    carried.sort();
    assert_eq!(carried, ["autostart", "fish", "git", "mise", "mise.toml", "systemd"].map(PathBuf::from));
    assert!(p.units_carried_by(Path::new("/ws/src")).is_empty());
}

fn component() -> impl Strategy<Value = String> {
    prop_oneof![
        Just(".git".to_owned()),
        Just(".GIT".to_owned()),
        Just("hooks".to_owned()),
        Just("config".to_owned()),
        Just(".vscode".to_owned()),
        Just("src".to_owned()),
        "[a-c]{1,2}",
    ]
}

fn tail() -> impl Strategy<Value = Vec<String>> {
    proptest::collection::vec(component(), 1..6)
}

fn is_unit(parts: &[String]) -> bool {
    let path = format!("/{}", parts.join("/")).to_ascii_lowercase();
    DEFAULT_PROTECTED_NAMES.iter().any(|n| path.ends_with(&format!("/{n}")))
}

proptest! {
    /// A grant on G covers O exactly if no unit is strictly between them.
    #[test]
    fn no_grant_reaches_through_a_unit(grant in tail(), below in tail()) {
        let path = |parts: &[String]| format!("/o/{}", parts.join("/"));
        let p = powers(&[], &[&format!("write {}", path(&grant))]);
        let whole: Vec<String> = grant.iter().chain(&below).cloned().collect();
        let crossed = (grant.len() + 1..=whole.len()).any(|n| is_unit(&whole[..n]));
        let verdict = p.decide_operation(DeniedOperation::Create, Path::new(&path(&whole)), &nothing);
        prop_assert_eq!(verdict == PermissionVerdict::Allow, !crossed, "{:?} {:?}", grant, below);
        prop_assert_eq!(p.decide_operation(DeniedOperation::Create, Path::new(&path(&grant)), &nothing), PermissionVerdict::Allow);
    }

    /// The grant that a refusal names suffices for the refused operation.
    #[test]
    fn the_named_grant_suffices(parts in tail(), inside in any::<bool>()) {
        let object = format!("{}/{}", if inside { "/ws" } else { "/o" }, parts.join("/"));
        let verdict = powers(&["/ws"], &[]).decide_operation(DeniedOperation::Create, Path::new(&object), &nothing);
        if let PermissionVerdict::Refuse(PermissionRefusal { grant: Some(grant), .. }) = verdict {
            let p = powers(&["/ws"], &[&grant.to_string()]);
            prop_assert_eq!(p.decide_operation(DeniedOperation::Create, Path::new(&object), &nothing), PermissionVerdict::Allow);
        }
    }

    /// Fewer roots, or more protected names, never allow more.
    #[test]
    fn narrowing_never_widens(roots in proptest::collection::vec(tail(), 1..4), object in tail(), drop in 0..4usize) {
        let roots: Vec<String> = roots.iter().map(|r| format!("/o/{}", r.join("/"))).collect();
        let mut wide: Vec<&str> = roots.iter().map(String::as_str).collect();
        let object = PathBuf::from(format!("/o/{}", object.join("/")));
        let before = powers(&wide, &[]).decide_operation(DeniedOperation::Write, &object, &nothing);
        let mut stricter = plan(&wide, &[]);
        stricter.profile.filesystem.protect.push("src".to_owned());
        let protected = AttemptPermissions::new(&stricter, [] as [&str; 0]).decide_operation(DeniedOperation::Write, &object, &nothing);
        prop_assert!(protected != PermissionVerdict::Allow || before == PermissionVerdict::Allow);
        wide.remove(drop.min(wide.len() - 1));
        let after = powers(&wide, &[]).decide_operation(DeniedOperation::Write, &object, &nothing);
        prop_assert!(after != PermissionVerdict::Allow || before == PermissionVerdict::Allow);
    }

    /// Case never matters for a protected name.
    #[test]
    fn case_is_no_way_around(at in 0..DEFAULT_PROTECTED_NAMES.len(), upper in any::<u64>()) {
        let spelled: String = DEFAULT_PROTECTED_NAMES[at]
            .chars()
            .enumerate()
            .map(|(i, c)| if upper >> (i % 64) & 1 == 1 { c.to_ascii_uppercase() } else { c })
            .collect();
        let verdict = powers(&["/ws"], &[]).decide_operation(DeniedOperation::Create, &Path::new("/ws/d").join(spelled), &nothing);
        prop_assert!(matches!(verdict, PermissionVerdict::Refuse(_)));
    }
}
