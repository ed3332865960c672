//! A traced run: every call has the result that it has without tracing, and
//! what was opened for reading or executed stands in the report.
#![allow(clippy::disallowed_methods, clippy::unwrap_used, clippy::expect_used)]

mod broker_support;
mod support;

use std::fs;
use std::os::unix::fs::symlink;

use broker_support::cases::Case;
use broker_support::{Scene, run_brokered};
use stockade_launch::ProcessExit;
use stockade_model::{DeniedOperation, IsolationLevel, RawText, ReadAccess};
use stockade_testkit::write_program;

const LEVELS: [IsolationLevel; 2] = [IsolationLevel::Full, IsolationLevel::Restricted];

/// Not a test: the side that makes the calls, in a process of its own.
#[test]
fn probe() {
    broker_support::probe();
}

/// Each case as it is natively or as it is in a run that is not traced.
#[test]
fn tracing_changes_no_call() {
    broker_support::in_each_role("tracing_changes_no_call", || {
        for level in LEVELS {
            let plain = Scene::new("plain");
            let (expected, _) = plain.probe_inside(level);
            let scene = Scene::new("traced");
            let mut plan = scene.plan(level, "all");
            plan.profile.filesystem.trace = true;
            let ran = run_brokered(&plan);
            let lines = scene.lines_of(&ran);
            let differ: Vec<_> = Case::all()
                .filter(|case| lines.get(case.name) != expected.get(case.name))
                .map(|case| (case.name, lines.get(case.name), expected.get(case.name)))
                .collect();
            assert!(differ.is_empty(), "{level}: {differ:#?}");
            assert!(!ran.report.reads.is_empty());
        }
    });
}

const SCRIPT: &str = r#"
cd "$OUT"
cat plain plain link ./d/../up > /dev/null
cat missing 2> /dev/null
cat < d/inner > /dev/null
exec 3< d; cat /dev/fd/0 < plain > /dev/null
ls d > /dev/null
cat "$PWD/../ws/own" > /dev/null
echo x > "$TMPDIR/mine"; cat "$TMPDIR/mine" > /dev/null
./tool
"#;

#[test]
fn reads_are_reported_once_with_reader_and_count() {
    for level in LEVELS {
        let scene = Scene::bare("reads");
        let out = scene.outside();
        for name in ["plain", "up", "target", "unread"] {
            fs::write(out.join(name), name).unwrap();
        }
        fs::create_dir(out.join("d")).unwrap();
        fs::write(out.join("d/inner"), "").unwrap();
        fs::write(scene.workspace().join("own"), "").unwrap();
        write_program(&out.join("tool"), b"#!/bin/sh\n. ./sourced\n").unwrap();
        fs::write(out.join("sourced"), "true\n").unwrap();
        symlink("target", out.join("link")).unwrap();
        let mut plan = support::plan(level, &scene.workspace(), &["/bin/sh", "-c", SCRIPT]);
        plan.environment.insert("OUT".to_owned(), RawText::from(out.as_path()));
        plan.environment.entry("TMPDIR".to_owned()).or_insert_with(|| RawText::from("/tmp"));
        plan.profile.filesystem.trace = true;
        let ran = run_brokered(&plan);
        assert_eq!(ran.ended, ProcessExit::Exited(0), "{level} {} {:#?}", ran.stderr, ran.report);
        let found = |path: &std::path::Path| ran.report.reads.iter().find(|read| read.object.as_path() == path);
        let out_names: Vec<String> = ran
            .report
            .reads
            .iter()
            .filter_map(|read| read.object.as_path().strip_prefix(&out).ok())
            .map(|path| path.display().to_string())
            .collect();
        assert_eq!(out_names, ["d", "d/inner", "plain", "sourced", "target", "tool", "up"], "{level}");
        let plain: &ReadAccess = found(&out.join("plain")).unwrap();
        assert!(plain.count >= 2 && plain.pid.is_some() && !plain.directory, "{plain:?}");
        assert!(plain.program.as_ref().unwrap().to_escaped().ends_with("/cat"), "{plain:?}");
        assert!(found(&out.join("d")).unwrap().directory);
        assert!(found(&scene.workspace().join("own")).is_some());
        // What only the run sees, and what is no file, is not worth a line.
        let noise = |read: &&ReadAccess| {
            let text = read.object.to_escaped();
            text.ends_with("/mine") || ["/proc/", "/dev/", "/sys/"].iter().any(|tree| text.starts_with(tree))
        };
        assert_eq!(ran.report.reads.iter().find(noise), None);
    }
}

#[test]
fn without_tracing_no_read_is_trapped() {
    for level in LEVELS {
        let scene = Scene::bare("untraced");
        let plan = support::plan(level, &scene.workspace(), &["/bin/sh", "-c", "cat /etc/passwd > /dev/null"]);
        let ran = run_brokered(&plan);
        assert_eq!((ran.ended, &ran.report.reads), (ProcessExit::Exited(0), &Vec::new()));
        // Two programs and the open of /dev/null.
        assert!(ran.report.calls < 8, "{}", ran.report.calls);
    }
}

/// A hidden path stays hidden, and stands as a refusal instead of a read; at
/// level full the placeholder tells, without the broker.
#[test]
fn access_to_hidden_files_is_a_refusal_and_no_read() {
    for level in LEVELS {
        let scene = Scene::bare("hidden");
        let secret = scene.outside().join("secret");
        fs::write(&secret, "key").unwrap();
        let script = r#"cat "$OUT/secret"; cat "$OUT/../out/secret"; true"#;
        let mut plan = support::plan(level, &scene.workspace(), &["/bin/sh", "-c", script]);
        plan.environment.insert("OUT".to_owned(), RawText::from(scene.outside()));
        plan.profile.filesystem.hide.push(RawText::from(secret.as_path()));
        plan.profile.filesystem.trace = true;
        let ran = run_brokered(&plan);
        assert!(!ran.stdout.contains("key"), "{level}");
        assert!(!ran.report.reads.iter().any(|read| read.object.as_path() == secret), "{:#?}", ran.report.reads);
        let refused: Vec<_> = ran.report.denials.iter().filter(|d| d.operation == DeniedOperation::Read).collect();
        let expected = if level == IsolationLevel::Full { 0 } else { 1 };
        assert_eq!(refused.len(), expected, "{level} {refused:#?}");
        assert!(refused.iter().all(|d| d.count == 2 && d.object.as_path() == secret && d.pid.is_some()));
    }
}

#[test]
fn a_tree_of_many_files_is_summarized_by_directory() {
    let scene = Scene::bare("many");
    for directory in 0..6 {
        fs::create_dir(scene.outside().join(directory.to_string())).unwrap();
        for file in 0..400 {
            fs::write(scene.outside().join(format!("{directory}/{file}")), "").unwrap();
        }
    }
    let script = r#"find "$OUT" -type f | xargs cat"#;
    let mut plan = support::plan(IsolationLevel::Full, &scene.workspace(), &["/bin/sh", "-c", script]);
    plan.environment.insert("OUT".to_owned(), RawText::from(scene.outside()));
    plan.profile.filesystem.trace = true;
    let ran = run_brokered(&plan);
    assert_eq!(ran.ended, ProcessExit::Exited(0), "{}", ran.stderr);
    let reads = &ran.report.reads;
    assert!(reads.len() <= 1000, "{}", reads.len());
    let together: u64 =
        reads.iter().filter(|read| read.object.as_path().starts_with(scene.outside())).map(|r| r.count).sum();
    // Each file, and each directory by find.
    assert!((2400..2430).contains(&together), "{together}");
    assert!(reads.iter().any(|read| read.files > 100 && read.directory));
}
