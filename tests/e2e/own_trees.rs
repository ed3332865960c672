//! What of the host's `/tmp` a command names: a run has one of its own, and says so where that
//! matters. At level full alone: at level restricted the host's is there.

use std::fs;
use std::os::unix::fs::{PermissionsExt as _, chown};

use serde_json::Value;
use stockade_testkit::ProgramEnd;

use crate::world::{World, binary, each_user};

/// A directory of the user's in the host's `/tmp`, with a file in it.
fn in_temporary(world: &World) -> tempfile::TempDir {
    let made = tempfile::Builder::new().prefix("stockade-e2e-").tempdir_in("/tmp").unwrap();
    fs::write(made.path().join("note"), "of the host\n").unwrap();
    for path in [made.path().to_owned(), made.path().join("note")] {
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
        chown(&path, Some(world.account.uid), Some(world.account.gid)).unwrap();
    }
    made
}

fn denials(outcome: &Value) -> Vec<(String, String, Option<String>)> {
    let text = |value: &Value| value.as_str().map(str::to_owned);
    let all = outcome["attempts"][0]["denials"].as_array().unwrap().iter();
    all.map(|d| (text(&d["operation"]).unwrap(), text(&d["object"]).unwrap(), text(&d["grant"]))).collect()
}

#[test]
fn hidden_host_files_are_reported_and_can_be_granted() {
    each_user(|world| {
        let made = in_temporary(world);
        let note = made.path().join("note").display().to_string();
        for script in [format!("cat {note}"), format!("test -e '{note}' || echo no; grep -c host <{note}")] {
            let outcome = world.outcome(&["--level", "full"], &["sh", "-c", &script]);
            let grant = format!("read {note}");
            assert_eq!(denials(&outcome), [("read".to_owned(), note.clone(), Some(grant))], "{script}");
        }
        let read = format!("read {note}");
        let output = world.passes(&["--level", "full", "--grant", &read], &["cat", &note]);
        assert_eq!(output.stdout, "of the host\n");
        // Reading is not writing.
        let output = world
            .run(&world.stockade(&["--level", "full", "--grant", &read], &["sh", "-c", &format!("echo x >{note}")]));
        assert_ne!(output.ended, ProgramEnd::Code(0));
        assert_eq!(fs::read_to_string(&note).unwrap(), "of the host\n");
    });
}

#[test]
fn temporary_files_of_a_run_are_reported_as_removed() {
    each_user(|world| {
        let made = in_temporary(world);
        let (new, note) =
            (made.path().join("new").display().to_string(), made.path().join("note").display().to_string());
        let directory = made.path().display().to_string();
        let script = format!("mkdir -p {directory}/in; echo x >{new}; echo y >{note}; echo z >{directory}/in/a");
        let output = world.run(&world.stockade(&["--level", "full"], &["sh", "-c", &script]));
        assert_eq!(output.ended, ProgramEnd::Code(0), "{}", output.combined_text());
        for (path, is_reported) in
            [(&new, true), (&note, true), (&format!("{directory}/in"), true), (&format!("{directory}/in/a"), false)]
        {
            let line = format!("gone: {path}   ");
            assert_eq!(output.stderr.contains(&line), is_reported, "{path}\n{}", output.combined_text());
        }
        assert!(output.stderr.contains("the host's is as it was"), "{}", output.combined_text());
        assert!(!fs::exists(&new).unwrap() && fs::read_to_string(&note).unwrap() == "of the host\n");
        // What was removed again, or is only in the workspace, is no matter.
        let quiet = world.passes(&["--level", "full"], &["sh", "-c", &format!("echo x >{new}; rm {new}; echo y >tmp")]);
        assert!(!quiet.stderr.contains("gone") && !quiet.stderr.contains("refused"), "{}", quiet.combined_text());
    });
}

#[test]
fn beside_a_workspace_nothing_persists() {
    each_user(|world| {
        let made = in_temporary(world);
        let workspace = made.path().join("project");
        fs::create_dir(&workspace).unwrap();
        chown(&workspace, Some(world.account.uid), Some(world.account.gid)).unwrap();
        let run = |script: &str| {
            let mut command =
                world.bare(&[&binary(), "run", "--mode", "never", "--level", "full", "--", "sh", "-c", script]);
            command.cwd.clone_from(&workspace);
            world.run(&command)
        };
        let output = run("echo x >../beside; echo y >own");
        let beside = made.path().join("beside");
        assert!(output.stderr.contains(&format!("gone: {}   ", beside.display())), "{}", output.combined_text());
        assert!(!beside.exists() && workspace.join("own").exists());
        let output = run("cat ../note");
        let note = made.path().join("note");
        assert!(output.stderr.contains(&format!("--request 'read {}'", note.display())), "{}", output.combined_text());
    });
}
