//! Remedies for refusals, in as few words as possible: the fewest grants that suffice for all of
//! them. A grant that is useless for the next run is not proposed. For a generated name its
//! directory is proposed, and for a part of a repository the repository.
//!
//! Reads names on the host if the paths are the host's, and changes nothing.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::io::ErrorKind;
use std::net::IpAddr;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use stockade_engine::repository_around;
use stockade_model::{Denial, DeniedOperation, Grant, Host, NetworkTarget, RawText, TargetPattern, is_localhost};
use stockade_policy::{HostGroup, advice_instead_of_grant, groups_with};

/// Most siblings that are granted one by one; more are granted by their directory.
const MAX_SINGLE_GRANTS: usize = 2;
/// Names at the top of a project.
const PROJECT_ROOT_NAMES: [&str; 5] = [".git", "Cargo.toml", "package.json", "go.work", "pyproject.toml"];

/// Locations that the remedies depend on.
#[derive(Clone, Copy, Debug)]
pub struct RemedyContext<'a> {
    /// Home directory of the user.
    pub home: &'a Path,
    /// The workspace, if paths are those of the host.
    pub workspace: Option<&'a Path>,
    /// Directories of Stockade's own files, which no grant includes.
    pub own_directories: &'a [PathBuf],
}

/// Remedy for a refusal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RefusalRemedy {
    /// These grants allow it.
    Grants(Vec<Grant>),
    /// This shipped group of hosts allows it.
    Group(&'static HostGroup),
    /// This workspace allows it.
    Workspace(PathBuf),
    /// Another remedy, in words.
    Advice(String),
    /// No remedy.
    Nothing,
}

/// Groups the refusals by their remedies, in their original order.
pub fn group_by_remedy<'d>(denials: &[&'d Denial], around: RemedyContext<'_>) -> Vec<(RefusalRemedy, Vec<&'d Denial>)> {
    let mut remedies: Vec<RefusalRemedy> = denials.iter().map(|denial| of_one(denial, around)).collect();
    join_loopback(&mut remedies);
    join_siblings(&mut remedies, around);
    join_hosts(&mut remedies);
    let widest: Vec<PathBuf> = remedies.iter().filter_map(written_path).map(Path::to_owned).collect();
    let mut groups: Vec<(RefusalRemedy, Vec<&Denial>)> = Vec::new();
    for (denial, remedy) in denials.iter().zip(remedies) {
        let covers =
            |path: &Path| widest.iter().filter(|wide| path.starts_with(wide)).min_by_key(|wide| wide.as_os_str().len());
        let remedy = match written_path(&remedy).and_then(covers) {
            Some(wide) => RefusalRemedy::Grants(vec![Grant::Write(wide.clone())]),
            None => remedy,
        };
        match groups.iter_mut().find(|(known, _)| *known == remedy && remedy != RefusalRemedy::Nothing) {
            Some((_, members)) => members.push(denial),
            None => groups.push((remedy, vec![denial])),
        }
    }
    groups
}

fn of_one(denial: &Denial, around: RemedyContext<'_>) -> RefusalRemedy {
    let Some(grant) = &denial.grant else { return RefusalRemedy::Nothing };
    if let Some(advice) = advice_instead_of_grant(grant, around.home) {
        return RefusalRemedy::Advice(advice);
    }
    let (Grant::Write(path), Some(workspace)) = (grant, around.workspace) else {
        return RefusalRemedy::Grants(vec![grant.clone()]);
    };
    if path.starts_with(workspace) {
        return RefusalRemedy::Grants(vec![grant.clone()]);
    }
    if let Some(top) = top_around(workspace, around).filter(|top| path.starts_with(top)) {
        return RefusalRemedy::Workspace(top);
    }
    let whole = repository_around(path).or_else(|| directory_of_passing(denial.operation, path));
    match whole {
        Some(whole) if !is_too_wide(&whole, around) && !workspace.starts_with(&whole) => {
            RefusalRemedy::Grants(vec![Grant::Write(whole)])
        }
        // The name is useless for the next run, and the directory is much wider.
        Some(whole) if workspace.starts_with(&whole) && path.extension() != Some(OsStr::new("lock")) => {
            RefusalRemedy::Advice(format!(
                "the program uses random names in `{}`, around the workspace; choose a path in the workspace for it, or \
                 make what it needs there first",
                RawText::from(whole.as_path()).to_escaped()
            ))
        }
        _ => RefusalRemedy::Grants(with_lock(path, around)),
    }
}

/// Returns the top of the project that contains the workspace.
fn top_around(workspace: &Path, around: RemedyContext<'_>) -> Option<PathBuf> {
    let above = || workspace.ancestors().skip(1).take_while(|above| !is_too_wide(above, around));
    let has = |name: &'static str| move |above: &&Path| is_there(&above.join(name));
    PROJECT_ROOT_NAMES.iter().find_map(|name| above().find(has(name))).map(Path::to_owned)
}

/// Returns the directory of an entry that a program creates with a generated name.
fn directory_of_passing(operation: DeniedOperation, path: &Path) -> Option<PathBuf> {
    let makes = matches!(
        operation,
        DeniedOperation::Create | DeniedOperation::Mkdir | DeniedOperation::Symlink | DeniedOperation::Link
    );
    path.parent().filter(|_| makes && path.file_name().is_some_and(is_passing)).map(Path::to_owned)
}

/// Returns the grants for a path. A file that is replaced through a lock file needs both names.
fn with_lock(path: &Path, around: RemedyContext<'_>) -> Vec<Grant> {
    let own = locked_file(path).filter(|own| may_be_file(own) && !is_too_wide(own, around)).map(Grant::Write);
    own.into_iter().chain([Grant::Write(path.to_owned())]).collect()
}

/// Returns the name that a lock file stands for: `settings` for `settings.lock`.
fn locked_file(path: &Path) -> Option<PathBuf> {
    let own = path.file_name()?.as_bytes().strip_suffix(b".lock")?;
    (!matches!(own, b"" | b"." | b"..")).then(|| path.with_file_name(OsStr::from_bytes(own)))
}

/// Returns whether a path is a regular file, or does not exist. No program replaces a directory through a
/// lock file, and a link would extend the grant to its target.
fn may_be_file(path: &Path) -> bool {
    path.symlink_metadata().map_or_else(|error| error.kind() == ErrorKind::NotFound, |found| found.is_file())
}

/// Returns whether a name is temporary, so that the next run will use another one.
fn is_passing(name: &OsStr) -> bool {
    let Some(name) = name.to_str() else { return false };
    let plain = name.to_ascii_lowercase();
    let is_marked = plain.starts_with(".#")
        || plain.ends_with('~')
        || plain.ends_with(".lock")
        || ["tmp", "temp"]
            .iter()
            .any(|mark| plain.trim_start_matches(['.', '_']).starts_with(mark) || plain.ends_with(mark));
    is_marked || name.split(|c: char| !c.is_ascii_alphanumeric()).any(is_made_up)
}

/// Returns whether a part of a name looks random: digits among letters, or capitals that do not
/// begin words.
fn is_made_up(part: &str) -> bool {
    let bytes = part.as_bytes();
    let changes = bytes.windows(2).filter(|pair| pair[0].is_ascii_digit() != pair[1].is_ascii_digit()).count();
    let capitals = bytes.iter().skip(1).filter(|byte| byte.is_ascii_uppercase()).count();
    let small = bytes.iter().filter(|byte| byte.is_ascii_lowercase()).count();
    let is_hex = bytes.len() >= 8 && bytes.iter().all(u8::is_ascii_hexdigit);
    let has_no_words = small > 0 && capitals > 0 && bytes.len() / (capitals + 1) < 3;
    let has_all_kinds = small > 0 && capitals > 0 && changes > 0;
    bytes.len() >= 6 && (is_hex && changes > 0 || changes >= 3 || has_no_words || has_all_kinds)
}

/// Returns whether a grant for a path other than the refused one would be much wider than the refusal,
/// would name a guarded path, or would be refused itself.
fn is_too_wide(directory: &Path, around: RemedyContext<'_>) -> bool {
    directory.components().count() < 3
        || around.home.starts_with(directory)
        || around.own_directories.iter().any(|own| own.starts_with(directory) || directory.starts_with(own))
        || advice_instead_of_grant(&Grant::Write(directory.to_owned()), around.home).is_some()
}

/// Returns the grant, if there is only one.
fn only_grant(remedy: &RefusalRemedy) -> Option<&Grant> {
    match remedy {
        RefusalRemedy::Grants(grants) if grants.len() == 1 => grants.first(),
        _ => None,
    }
}

/// Returns the path that a single grant makes writable.
fn written_path(remedy: &RefusalRemedy) -> Option<&Path> {
    match only_grant(remedy)? {
        Grant::Write(path) => Some(path),
        _ => None,
    }
}

/// Replaces both loopback addresses on one port by `localhost`.
fn join_loopback(remedies: &mut [RefusalRemedy]) {
    let target = |remedy: &RefusalRemedy| only_grant(remedy)?.targets()?.target();
    let address = |target: &NetworkTarget| match target.host {
        Host::Address(address) if is_localhost(address) => Some(address),
        _ => None,
    };
    let known: Vec<(IpAddr, u16)> =
        remedies.iter().filter_map(target).filter_map(|target| Some((address(&target)?, target.port))).collect();
    let Ok(localhost) = "localhost".parse::<Host>() else { return };
    for remedy in remedies {
        let Some(own) = target(remedy).filter(|own| address(own).is_some()) else { continue };
        if known.iter().any(|(ip, port)| *port == own.port && Some(*ip) != address(&own)) {
            let target = NetworkTarget { host: localhost.clone(), port: own.port };
            *remedy = RefusalRemedy::Grants(vec![Grant::Connect(TargetPattern::for_target(&target))]);
        }
    }
}

/// Replaces several hosts of one group by its name. The group with the most of them comes first,
/// and the smallest of those; then the rest likewise.
fn join_hosts(remedies: &mut [RefusalRemedy]) {
    let target = |remedy: &RefusalRemedy| only_grant(remedy)?.targets()?.target();
    loop {
        let remaining: BTreeSet<NetworkTarget> = remedies.iter().filter_map(target).collect();
        let of_each: Vec<Vec<&'static HostGroup>> = remaining.iter().map(groups_with).collect();
        let members = |group: &HostGroup| of_each.iter().flatten().filter(|other| other.name == group.name).count();
        let best = of_each.iter().flatten().copied().min_by_key(|group| (Reverse(members(group)), group.hosts.len()));
        let Some(best) = best.filter(|group| members(group) > 1) else { return };
        for remedy in remedies.iter_mut() {
            let is_in = |target: NetworkTarget| groups_with(&target).iter().any(|group| group.name == best.name);
            if target(remedy).is_some_and(is_in) {
                *remedy = RefusalRemedy::Group(best);
            }
        }
    }
}

/// Replaces several files of one directory outside the workspace by the directory.
fn join_siblings(remedies: &mut [RefusalRemedy], around: RemedyContext<'_>) {
    let Some(workspace) = around.workspace else { return };
    let parent = |remedy: &RefusalRemedy| {
        let path = written_path(remedy).filter(|path| !path.starts_with(workspace))?;
        path.parent().filter(|parent| !is_too_wide(parent, around)).map(Path::to_owned)
    };
    let mut children: BTreeMap<PathBuf, BTreeSet<PathBuf>> = BTreeMap::new();
    for remedy in remedies.iter() {
        if let (Some(parent), Some(path)) = (parent(remedy), written_path(remedy)) {
            children.entry(parent).or_default().insert(path.to_owned());
        }
    }
    for remedy in remedies {
        let whole =
            parent(remedy).filter(|parent| children.get(parent).is_some_and(|all| all.len() > MAX_SINGLE_GRANTS));
        if let Some(whole) = whole {
            *remedy = RefusalRemedy::Grants(vec![Grant::Write(whole)]);
        }
    }
}

fn is_there(path: &Path) -> bool {
    path.symlink_metadata().is_ok()
}

#[cfg(test)]
mod tests {
    use stockade_model::DenialResolution;

    use super::super::question::tests::sample_denial;
    use super::*;

    fn refused(operation: DeniedOperation, grant: &str) -> Denial {
        let grant: Grant = grant.parse().unwrap();
        let object = grant.to_string().as_str().into();
        Denial { operation, object, grant: Some(grant), resolution: DenialResolution::Recorded, ..sample_denial() }
    }

    #[track_caller]
    fn check(workspace: &Path, refusals: &[(DeniedOperation, &str)], expected: &[&str]) {
        let all: Vec<Denial> = refusals.iter().map(|(operation, grant)| refused(*operation, grant)).collect();
        let all: Vec<&Denial> = all.iter().collect();
        let own_directories = ["/etc/stockade", "/home/u/.config/stockade", "/srv/state/deep/stockade"];
        let around = RemedyContext {
            home: Path::new("/home/u"),
            workspace: Some(workspace),
            own_directories: &own_directories.map(PathBuf::from),
        };
        let remedy_texts: Vec<String> = group_by_remedy(&all, around)
            .into_iter()
            .map(|(remedy, members)| match remedy {
                RefusalRemedy::Grants(grants) => {
                    let grants: Vec<String> = grants.iter().map(ToString::to_string).collect();
                    format!("{} x {}", members.len(), grants.join(" + "))
                }
                RefusalRemedy::Group(group) => format!("{} x @{}", members.len(), group.name),
                other => format!("{} x {other:?}", members.len()),
            })
            .collect();
        assert_eq!(remedy_texts, expected);
    }

    #[test]
    fn no_name_that_was_made_up_around_the_workspace() {
        let made = [(DeniedOperation::Mkdir, "write /srv/projects/tgt7czTTt")];
        let advice = "1 x Advice(\"the program uses random names in `/srv/projects`, around the workspace; choose a path \
                      in the workspace for it, or make what it needs there first\")";
        check(Path::new("/srv/projects/one"), &made, &[advice]);
        check(Path::new("/srv/other"), &made, &["1 x write /srv/projects"]);
        let lock = [(DeniedOperation::Create, "write /srv/projects/settings.lock")];
        check(
            Path::new("/srv/projects/one"),
            &lock,
            &["1 x write /srv/projects/settings + write /srv/projects/settings.lock"],
        );
    }

    #[test]
    fn names_that_a_program_made_up() {
        for name in [
            "tmp_objdir-incoming-6IiQv0",
            ".gitconfig.lock",
            "tmpab12cd",
            "_tmp_12_0",
            "x.8hX2kQ",
            "x.VjqKzP",
            "x.yLT1QF",
            "a3f9c2d1e8",
            ".#file",
            "file~",
            "part.tmp",
        ] {
            assert!(is_passing(OsStr::new(name)), "{name}");
        }
        for name in [
            "outside",
            "main.rs",
            "MyClassName.java",
            "file2",
            "2024-report",
            "README.md",
            "python3.11",
            "deadbeef",
            "x",
        ] {
            assert!(!is_passing(OsStr::new(name)), "{name}");
        }
    }

    #[test]
    fn the_fewest_grants_that_suffice() {
        use DeniedOperation::{Connect, Create, Mkdir, Write};
        let ws = Path::new("/w/nothing/there");
        check(ws, &[(Create, "write /o/p/a"), (Create, "write /o/p/b")], &["1 x write /o/p/a", "1 x write /o/p/b"]);
        check(
            ws,
            &[(Create, "write /o/p/a"), (Write, "write /x/y/z"), (Mkdir, "write /o/p/b"), (Create, "write /o/p/c")],
            &["3 x write /o/p", "1 x write /x/y/z"],
        );
        // Never a home, nor the root directory.
        let three = ["write /home/u/a", "write /home/u/b", "write /home/u/c"];
        check(
            ws,
            &three.map(|grant| (Create, grant)),
            &three.map(|grant| format!("1 x {grant}")).each_ref().map(String::as_str),
        );
        // Nor a directory that contains Stockade's own files, because that grant is refused.
        for directory in ["/home/u/.config", "/srv/state", "/srv/state/deep"] {
            let three = ["a", "b", "c"].map(|name| format!("write {directory}/{name}"));
            check(
                ws,
                &three.each_ref().map(|grant| (Create, grant.as_str())),
                &three.each_ref().map(|grant| format!("1 x {grant}")).each_ref().map(String::as_str),
            );
        }
        check(ws, &[(Create, "write /o/p/tmpa1b2c3/x"), (Mkdir, "write /o/p/tmpa1b2c3")], &["2 x write /o/p"]);
        check(ws, &[(Create, "write /home/u/.x.lock")], &["1 x write /home/u/.x + write /home/u/.x.lock"]);
        check(ws, &[(Connect, "connect 127.0.0.1:80"), (Connect, "connect [::1]:80")], &["2 x connect localhost:80"]);
        check(
            ws,
            &[(Connect, "connect 127.0.0.1:80"), (Connect, "connect [::1]:81"), (Connect, "connect 127.0.0.1:80")],
            &["2 x connect 127.0.0.1:80", "1 x connect [::1]:81"],
        );
    }

    #[test]
    fn hosts_of_a_group_are_granted_by_its_name() {
        let ws = Path::new("/w/nothing/there");
        let check_hosts = |hosts: &[&str], expected: &[&str]| {
            let grants: Vec<String> = hosts.iter().map(|host| format!("connect {host}:443")).collect();
            let refusals: Vec<_> = grants.iter().map(|grant| (DeniedOperation::Connect, grant.as_str())).collect();
            check(ws, &refusals, expected);
        };
        let other = "1 x connect example.com:443";
        check_hosts(&["pypi.org", "example.com", "files.pythonhosted.org"], &["2 x @pypi", other]);
        // One host needs no group, however often it was refused.
        check_hosts(&["pypi.org", "pypi.org", "example.com"], &["2 x connect pypi.org:443", other]);
        check_hosts(&["index.crates.io", "static.crates.io"], &["2 x @crates"]);
        check_hosts(&["index.crates.io", "static.rust-lang.org", "static.crates.io"], &["3 x @cargo"]);
        check_hosts(
            &["registry.npmjs.org", "pypi.org"],
            &["1 x connect registry.npmjs.org:443", "1 x connect pypi.org:443"],
        );
        // The port must match, and so must every label of the name.
        check(
            ws,
            &[
                (DeniedOperation::Connect, "connect pypi.org:443"),
                (DeniedOperation::Connect, "connect files.pythonhosted.org:80"),
            ],
            &["1 x connect pypi.org:443", "1 x connect files.pythonhosted.org:80"],
        );
        check_hosts(&["x.pypi.org", "pypi.org"], &["1 x connect x.pypi.org:443", "1 x connect pypi.org:443"]);
    }

    #[test]
    fn no_lock_file_leads_to_a_guarded_path() {
        let ws = Path::new("/w/nothing/there");
        for lock in [
            "/usr.lock",
            "/boot.lock",
            "/etc.lock",
            "/root.lock",
            "/etc/passwd.lock",
            "/home.lock",
            "/home/u.lock",
            "/home/u/.netrc.lock",
            "/home/u/.git-credentials.lock",
            "/home/u/.config/stockade.lock",
            "/w/nothing/...lock",
            "/w/nothing/..lock",
            "/w/nothing/.lock",
        ] {
            let grant = format!("write {lock}");
            let refusals: Vec<Denial> =
                [DeniedOperation::Create, DeniedOperation::Write].map(|op| refused(op, &grant)).into();
            for denial in refusals {
                let own_directories = [PathBuf::from("/home/u/.config/stockade")];
                let around = RemedyContext {
                    home: Path::new("/home/u"),
                    workspace: Some(ws),
                    own_directories: &own_directories,
                };
                let offered: Vec<String> = match of_one(&denial, around) {
                    RefusalRemedy::Grants(grants) => grants.iter().map(ToString::to_string).collect(),
                    _ => Vec::new(),
                };
                assert!(offered.iter().all(|offer| *offer == grant), "{lock}: {offered:?}");
            }
        }
    }

    #[test]
    fn a_lock_file_locks_only_a_file() {
        let position = tempfile::tempdir().unwrap();
        let at = |name: &str| position.path().canonicalize().unwrap().join(name);
        std::fs::create_dir_all(at("one")).unwrap();
        std::fs::create_dir_all(at("directory")).unwrap();
        std::os::unix::fs::symlink("/usr", at("link")).unwrap();
        std::fs::write(at("file"), "").unwrap();
        let grant = |name: &str| format!("write {}", at(name).display());
        let lock = |name: &str| grant(&format!("{name}.lock"));
        for name in ["one", "directory", "link"] {
            check(&at("one"), &[(DeniedOperation::Create, &lock(name))], &[&format!("1 x {}", lock(name))]);
        }
        for name in ["file", "absent"] {
            let both = format!("1 x {} + {}", grant(name), lock(name));
            check(&at("one"), &[(DeniedOperation::Create, &lock(name))], &[&both]);
        }
    }

    #[test]
    fn repositories_and_projects_include_their_content() {
        let position = tempfile::tempdir().unwrap();
        let at = |name: &str| position.path().canonicalize().unwrap().join(name);
        for directory in ["origin.git/objects", "origin.git/refs", "project/sub/deep", "project/.git/objects"] {
            std::fs::create_dir_all(at(directory)).unwrap();
        }
        std::fs::write(at("origin.git/HEAD"), "").unwrap();
        let origin = format!("write {}", at("origin.git").display());
        let inner = format!("{origin}/objects/incoming-Ab1Cd2");
        check(&at("project"), &[(DeniedOperation::Mkdir, &inner)], &[&format!("1 x {origin}")]);
        let lock = format!("write {}", at("project/.git/index.lock").display());
        let top = format!("1 x Workspace({:?})", at("project"));
        check(&at("project/sub/deep"), &[(DeniedOperation::Create, &lock)], &[&top]);
    }
}
