//! What a rule about files means for commands: it holds for them, by a power of
//! the profile, or the import says that it does not.

use std::path::Path;

use stockade_policy::{ImportDeviation, ImportTool, ImportedPolicy, import_policy, resolve_profile};

use super::ours::{settings_of, source};

fn claude(text: &str) -> ImportedPolicy {
    import_policy(ImportTool::Claude, &[source(ImportTool::Claude, "s.json", text)])
        .unwrap_or_else(|error| panic!("{text}: {error}"))
}

fn is_reported(imported: &ImportedPolicy) -> bool {
    imported.notes.iter().any(|note| note.carried == ImportDeviation::Weaker)
}

/// Holds one rule against the list of the profile that it becomes, and whether it
/// is told that commands can do it still.
fn check(rule: &str, key: &str, expected: Option<&str>, expects_report: bool) {
    for effect in ["deny", "ask"] {
        let imported = claude(&format!("{{\"permissions\": {{\"{effect}\": [\"{rule}\"]}}}}"));
        let list = imported.profile.get(key).map(|list| list.join(" "));
        assert_eq!(list.as_deref(), expected, "{effect} {rule}: {:?}", imported.notes);
        assert_eq!(is_reported(&imported), expects_report, "{effect} {rule}: {:?}", imported.notes);
        assert!(expects_report || expected.is_some() || !imported.notes.is_empty(), "{effect} {rule}: nothing is said");
    }
}

#[test]
fn unwritable_paths_are_protected_or_reported() {
    for tool in ["Edit", "Write", "MultiEdit", "NotebookEdit"] {
        for (path, protected, expects_report) in [
            ("", None, true),
            ("(*)", None, true),
            ("(./package.json)", Some("package.json"), false),
            ("(package-lock.json)", Some("package-lock.json"), false),
            ("(**/package-lock.json)", Some("package-lock.json"), false),
            ("(generated/)", Some("generated"), false),
            ("(src/gen/**)", Some("src/gen"), false),
            ("(/src/gen/**)", Some("src/gen"), false),
            ("(./*.lock)", None, true),
            ("(*.lock)", None, true),
            ("(./**)", None, true),
            ("(**)", None, true),
            ("(./)", None, true),
            ("(../other/**)", None, true),
            ("(a/../../other)", None, true),
            ("(!a)", None, true),
            ("($HOME/x)", None, true),
            ("(/)", None, true),
            ("(~)", None, true),
            ("(~/**)", None, true),
            ("(//**)", None, true),
            // The workspace may lie there, or the file in it.
            ("(~/work/app/package.json)", Some("work/app/package.json"), false),
            ("(//srv/app/package.json)", Some("srv/app/package.json"), false),
            ("(~/work/prod/**)", Some("work/prod"), true),
            ("(//srv/prod/**)", Some("srv/prod"), true),
            ("(~/notes/**)", None, true),
            ("(//srv/**)", None, true),
            ("(~/notes.txt)", Some("notes.txt"), false),
            ("(~/**/package.json)", Some("package.json"), false),
            ("(//**/prod/**)", Some("prod"), true),
            ("(~/work/*/x)", None, true),
            // Nobody works there.
            ("(//etc/**)", None, false),
            ("(~/.ssh/**)", None, false),
        ] {
            check(&format!("{tool}{path}"), "protect", protected, expects_report);
        }
    }
}

#[test]
fn unreadable_paths_are_hidden_or_reported_in_every_form() {
    for (rule, hidden, expects_report) in [
        ("Read", None, true),
        ("Grep", None, true),
        ("Read(*)", None, true),
        ("Read(./secrets/**)", Some("./secrets"), false),
        ("Grep(./secrets/**)", Some("./secrets"), false),
        ("Read(/secrets/**)", Some("./secrets"), false),
        ("Read(../other/**)", None, true),
        ("Read(./../other/**)", None, true),
        ("Read(a/../../other/**)", None, true),
        ("Read(~/../other/**)", None, true),
        ("Read(!./a)", None, true),
        ("Read(/)", None, true),
        ("Read($HOME/x)", None, true),
        ("Read(~/private/key.pem)", Some("~/private/key.pem"), false),
        ("Read(~/private/**)", Some("~/private"), true),
        ("Read(//srv/x/**)", Some("/srv/x"), true),
        ("Read(~/.ssh/**)", Some("~/.ssh"), false),
        ("Read(//**/.env)", None, true),
        ("Read(~/**/.env)", None, true),
    ] {
        check(rule, "hide", hidden, expects_report);
    }
}

/// Where no command runs unasked, a rule about files needs no power to hold.
#[test]
fn rules_about_files_hold_where_no_command_runs() {
    for (lists, expects_report) in [
        ("\"deny\": [\"Edit\", \"Read(../x)\", \"Bash\"]", false),
        ("\"deny\": [\"*\"]", false),
        ("\"ask\": [\"*\"]", false),
        ("\"ask\": [\"Bash(*)\", \"Edit\"]", false),
        // A person who agrees to a command does not agree to what was refused.
        ("\"ask\": [\"Bash\"], \"deny\": [\"Edit\"]", true),
        ("\"deny\": [\"Bash(rm *)\", \"Edit\"]", true),
    ] {
        let imported = claude(&format!("{{\"permissions\": {{{lists}}}}}"));
        assert_eq!(is_reported(&imported), expects_report, "{lists}: {:?}", imported.notes);
    }
}

/// A directory that is given to commands to write is neither hidden nor protected
/// by a rule about what is above it.
#[test]
fn powers_to_write_are_reported() {
    for (written, rule, expects_report) in [
        ("./gen/out", "Edit(./gen/**)", true),
        ("./gen", "Edit(./gen/**)", true),
        ("./gen", "Edit(./gen/x)", false),
        ("./gen/out", "Read(./gen/**)", true),
        ("/etc/app", "Edit(//etc/**)", true),
        ("/etc", "Edit(//etc/app/x.conf)", false),
        ("~/.config", "Edit(~/.config/gh/**)", true),
    ] {
        let sandbox = format!("{{\"enabled\": true, \"filesystem\": {{\"allowWrite\": [\"{written}\"]}}}}");
        let text = format!("{{\"sandbox\": {sandbox}, \"permissions\": {{\"deny\": [\"{rule}\"]}}}}");
        assert_eq!(is_reported(&claude(&text)), expects_report, "{written} {rule}");
    }
}

/// `denyWrite` of the sandbox is a denial like another.
#[test]
fn unwritable_paths_of_the_sandbox_are_protected_or_reported() {
    for (path, protected, expects_report) in [
        ("./x", Some("x"), false),
        (".", None, true),
        ("~/work/prod", Some("work/prod"), true),
        ("/etc", None, false),
        ("./*.lock", None, true),
    ] {
        let text = format!("{{\"sandbox\": {{\"enabled\": true, \"filesystem\": {{\"denyWrite\": [\"{path}\"]}}}}}}");
        let imported = claude(&text);
        let list = imported.profile.get("protect").map(|list| list.join(" "));
        assert_eq!(
            (list.as_deref(), is_reported(&imported)),
            (protected, expects_report),
            "{path}: {:?}",
            imported.notes
        );
        assert!(
            imported.notes.iter().all(|note| note.carried != ImportDeviation::Left),
            "{path}: a denial allows nothing"
        );
    }
}

/// `denyRead` as well, but for the workspace where the sandbox reveals it.
#[test]
fn unreadable_paths_of_the_sandbox_are_hidden_or_reported() {
    for (lists, expects_report) in [
        ("\"denyRead\": [\"./x\"]", false),
        ("\"denyRead\": [\"~/.ssh\"]", false),
        ("\"denyRead\": [\".\"]", true),
        ("\"denyRead\": [\"~/\"]", true),
        ("\"denyRead\": [\"~/work\"]", true),
        ("\"denyRead\": [\"~/\"], \"allowRead\": [\".\"]", false),
    ] {
        let text = format!("{{\"sandbox\": {{\"enabled\": true, \"filesystem\": {{{lists}}}}}}}");
        assert_eq!(is_reported(&claude(&text)), expects_report, "{lists}");
    }
}

/// The mode `plan` chooses another profile: what is refused holds in it as well.
#[test]
fn refusals_hold_in_the_profile_of_the_mode() {
    let rules = "\"deny\": [\"Read(./secrets/**)\", \"Edit(./gen/**)\"], \"defaultMode\": \"plan\"";
    let sandbox = "{\"enabled\": true, \"network\": {\"deniedDomains\": [\"evil.example\"], \"allowedDomains\": [\"a.example\"]}, \"filesystem\": {\"allowWrite\": [\"/srv/x\"]}}";
    let imported = claude(&format!("{{\"permissions\": {{{rules}}}, \"sandbox\": {sandbox}}}"));
    let settings = settings_of(&imported);
    assert_eq!(settings.profile.value.as_str(), "read-only");
    for name in ["read-only", "workspace"] {
        let profile = resolve_profile(&settings, name, Path::new("/w"), &[]).unwrap_or_else(|error| panic!("{error}"));
        let files = &profile.filesystem;
        assert!(files.hide.iter().any(|path| path.as_path() == Path::new("/w/secrets")), "{name}: {:?}", files.hide);
        assert!(files.protect.contains(&"gen".to_owned()), "{name}: {:?}", files.protect);
        let writes = files.write.iter().any(|path| path.as_path() == Path::new("/srv/x"));
        assert_eq!(writes, name == "workspace", "{name}: {:?}", files.write);
    }
}
