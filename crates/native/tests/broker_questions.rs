//! Held calls where others fail: signals, swapped links, racing threads, many
//! askers, and everybody else's work while a question stands.
#![allow(clippy::disallowed_methods, clippy::unwrap_used, clippy::expect_used)]

mod broker_support;
mod support;

use std::fs;
use std::os::unix::fs::symlink;
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::process::Command;
use std::thread;
use std::time::Duration;

use broker_support::{Brokered, Question, React, Scene, no, run_holding, snapshot, yes};
use stockade_backend_api::HeldAnswer;
use stockade_launch::ProcessExit;
use stockade_model::{AttemptPlan, Grant, IsolationLevel, RawText};
use stockade_native::broker::AnswerSender;

const LEVELS: [IsolationLevel; 2] = [IsolationLevel::Full, IsolationLevel::Restricted];
/// Seconds for the tests that gain by running long.
const LONG: &str = "STOCKADE_LONG_SECONDS";

/// Not a test: the side that makes the calls, in a process of its own.
#[test]
fn probe() {
    broker_support::probe();
}

fn shell(level: IsolationLevel, scene: &Scene, script: &str) -> AttemptPlan {
    let mut plan = support::plan(level, &scene.workspace(), &["/bin/sh", "-c", script]);
    plan.environment.insert("OUT".to_owned(), RawText::from(scene.outside()));
    plan
}

/// Runs a script in a fresh workspace at every level. `prepare` fills what is
/// outside, `react` answers, `check` looks at what came of it.
#[track_caller]
fn each(script: &str, prepare: impl Fn(&Path), react: impl Fn(&Path) -> React, check: impl Fn(&Brokered, &Path)) {
    for level in LEVELS {
        let scene = Scene::bare("questions");
        let out = scene.outside();
        prepare(&out);
        let ran = run_holding(&shell(level, &scene, script), react(&out));
        println!("{level}: {:?} {} {} {:#?} {:#?}", ran.ended, ran.stdout, ran.stderr, ran.asked(), ran.denied());
        check(&ran, &out);
    }
}

fn nothing(_: &Path) {}

fn read(path: impl AsRef<Path>) -> String {
    fs::read_to_string(path).unwrap()
}

fn grant(question: &Question, answers: &AnswerSender) {
    answers.answer_held_call(question.id, HeldAnswer::Granted(question.denial.grant.iter().cloned().collect()));
}

fn after(delay: Duration) -> React {
    Box::new(move |question, answers| {
        thread::sleep(delay);
        grant(question, answers);
    })
}

fn have(program: &str) -> bool {
    let found = ["/usr/bin", "/bin", "/usr/local/bin"].iter().any(|d| Path::new(d).join(program).exists());
    if !found {
        eprintln!("not run: no {program}");
    }
    found
}

#[test]
fn a_timer_in_the_asker_does_not_ask_again() {
    if !have("perl") {
        return;
    }
    let script = r#"perl -MTime::HiRes=setitimer,ITIMER_REAL -e '$SIG{ALRM}=sub{$n++}; setitimer(ITIMER_REAL,0.1,0.1); open(F,">>","$ENV{OUT}/f") or die "$!"; print F "new\n"; close F; setitimer(ITIMER_REAL,0); print $n>0 ? "rang" : "silent"'"#;
    each(
        script,
        |out| fs::write(out.join("f"), "old\n").unwrap(),
        |_| after(Duration::from_secs(1)),
        |ran, out| {
            assert_eq!((ran.ended, ran.stdout.as_str()), (ProcessExit::Exited(0), "rang"), "{}", ran.stderr);
            assert_eq!(ran.questions.len(), 1);
            assert_eq!(read(out.join("f")), "old\nnew\n");
        },
    );
}

#[test]
fn an_approved_append_appends_and_an_approved_overwrite_truncates() {
    each(
        "echo new >> $OUT/f; echo new > $OUT/g; echo made > $OUT/h; cat $OUT/f $OUT/g $OUT/h",
        |out| ["f", "g"].iter().for_each(|name| fs::write(out.join(name), "old\n").unwrap()),
        |_| yes(),
        |ran, _| {
            assert_eq!(ran.stdout, "old\nnew\nnew\nmade\n", "{}", ran.stderr);
            assert_eq!(ran.questions.len(), 3);
        },
    );
}

/// While the question stands, `swap` changes what is there; then yes is said.
fn swapped(script: &str, swap: fn(&Path), check: impl Fn(&Brokered, &Path)) {
    each(
        script,
        |out| {
            for (name, text) in [("one/f", "one\n"), ("two/f", "two\n")] {
                fs::create_dir_all(out.join(name).parent().unwrap()).unwrap();
                fs::write(out.join(name), text).unwrap();
            }
        },
        |out| {
            let out = out.to_owned();
            Box::new(move |question, answers| {
                swap(&out);
                grant(question, answers);
            })
        },
        check,
    );
}

fn refused_as_changed(ran: &Brokered, out: &Path) {
    assert_eq!(ran.stdout.trim(), "refused", "{}", ran.stderr);
    assert_eq!(ran.questions.len(), 1);
    assert_eq!(read(out.join("two/f")), "two\n");
    let rules: Vec<_> = ran.report.denials.iter().map(|d| (d.rule.as_str(), d.grant.as_ref())).collect();
    assert_eq!(rules, [("it changed while the question was open", None)]);
}

#[test]
fn a_link_swapped_during_the_question_yields_no_other_object() {
    // A link inside, swapped by another process of the run itself.
    swapped(
        "ln -s $OUT/one l; (sleep 0.3; ln -sfn $OUT/two l; touch swapped) & echo new > l/f; while [ ! -e swapped ]; do sleep 0.05; done; wait; cat l/f $OUT/one/f",
        |_| thread::sleep(Duration::from_secs(1)),
        |ran, out| {
            assert_eq!(ran.stdout, "two\nnew\n", "{}", ran.stderr);
            assert_eq!(ran.questions[0].denial.object, RawText::from(out.join("one/f")));
        },
    );
    // The file becomes a link.
    swapped(
        "(echo new > $OUT/one/f) 2>/dev/null || echo refused",
        |out| {
            fs::remove_file(out.join("one/f")).unwrap();
            symlink("../two/f", out.join("one/f")).unwrap();
        },
        refused_as_changed,
    );
    // A name that was free becomes a link.
    swapped(
        "(echo new > $OUT/one/n) 2>/dev/null || echo refused",
        |out| symlink("../two/f", out.join("one/n")).unwrap(),
        refused_as_changed,
    );
    // Its directory becomes a link.
    swapped(
        "(echo new > $OUT/one/f) 2>/dev/null || echo refused",
        |out| {
            fs::rename(out.join("one"), out.join("was")).unwrap();
            symlink("two", out.join("one")).unwrap();
        },
        refused_as_changed,
    );
    // Another file takes its place.
    swapped(
        "(echo new > $OUT/one/f) 2>/dev/null || echo refused",
        |out| {
            fs::write(out.join("one/n"), "another\n").unwrap();
            fs::rename(out.join("one/n"), out.join("one/f")).unwrap();
        },
        |ran, out| {
            refused_as_changed(ran, out);
            assert_eq!(read(out.join("one/f")), "another\n");
        },
    );
    // What a descriptor holds is moved away.
    swapped(
        "exec 3< $OUT/one/f; (echo new > /proc/self/fd/3) 2>/dev/null || echo refused",
        |out| fs::rename(out.join("one/f"), out.join("one/moved")).unwrap(),
        |ran, out| {
            refused_as_changed(ran, out);
            assert_eq!(read(out.join("one/moved")), "one\n");
        },
    );
}

#[test]
fn one_object_is_asked_once() {
    let script = "for i in 1 2 3; do (echo $i >> $OUT/f) 2>/dev/null; chmod 640 $OUT/f 2>/dev/null; done; \
                  for i in 4 5 6; do (echo $i >> $OUT/g) 2>/dev/null & done; wait; sort $OUT/f $OUT/g | tr '\\n' ' '";
    let prepare = |out: &Path| ["f", "g"].iter().for_each(|name| fs::write(out.join(name), "").unwrap());
    let late = |_: &Path| after(Duration::from_millis(200));
    each(script, prepare, late, |ran, out| {
        assert_eq!(ran.stdout, "1 2 3 4 5 6 ", "{}", ran.stderr);
        let objects: Vec<_> = ran.questions.iter().map(|q| q.denial.object.clone()).collect();
        assert_eq!(objects, [RawText::from(out.join("f")), RawText::from(out.join("g"))]);
    });
    each(
        script,
        prepare,
        |_| no(),
        |ran, _| {
            assert_eq!(ran.stdout, "");
            assert_eq!(ran.questions.len(), 2);
            let counts: Vec<_> = ran.report.denials.iter().map(|d| d.count).collect();
            assert_eq!(counts, [6, 3], "{:#?}", ran.report.denials);
        },
    );
}

#[test]
fn an_approval_for_a_directory_answers_calls_waiting_beneath_it() {
    each(
        "mkdir -p $OUT/d; for i in $(seq 30); do (echo $i > $OUT/d/$i) & done; wait; ls $OUT/d | wc -l",
        |out| fs::create_dir(out.join("d")).unwrap(),
        |out| {
            let directory = Grant::Write(out.join("d"));
            let mut asked = 0;
            Box::new(move |question, answers| {
                asked += 1;
                if asked == 3 {
                    thread::sleep(Duration::from_millis(200));
                    answers.answer_held_call(question.id, HeldAnswer::Granted(vec![directory.clone()]));
                } else if asked > 3 {
                    // The engine answers what it sees covered, too.
                    answers.answer_held_call(question.id, HeldAnswer::Granted(Vec::new()));
                }
            })
        },
        |ran, out| {
            assert_eq!(ran.stdout.trim(), "30", "{}", ran.stderr);
            assert!((1..=30).all(|i| read(out.join(format!("d/{i}"))) == format!("{i}\n")));
            assert!(ran.withdrawn.is_empty(), "{:?}", ran.log);
        },
    );
}

#[test]
fn a_granted_directory_that_is_moved_is_not_written_under_its_old_name() {
    each(
        "echo a > $OUT/d/a; echo b > $OUT/d/b; mv $OUT/d $OUT/e; mkdir $OUT/d; echo c > $OUT/d/c; \
         (cd $OUT/e; echo d > d); ls $OUT/d $OUT/e | tr '\\n' ' '; ls $OUT/d; rm -r $OUT/d; echo e 2>/dev/null > $OUT/d/e || echo none",
        |out| fs::create_dir(out.join("d")).unwrap(),
        |out| {
            let directories = [Grant::Write(out.join("d")), Grant::Write(out.join("e"))].to_vec();
            Box::new(move |question, answers| {
                answers.answer_held_call(question.id, HeldAnswer::Granted(directories.clone()));
            })
        },
        |ran, out| {
            let expected = format!("{0}/d: c {0}/e: a b d c none ", out.display());
            assert_eq!(ran.stdout.replace(char::is_whitespace, " ").replace("  ", " "), expected, "{}", ran.stderr);
            assert_eq!(ran.questions.len(), 1, "{:?}", ran.asked());
        },
    );
}

#[test]
fn open_questions_are_answered_in_any_order() {
    each(
        "(echo a > $OUT/a) & (echo b > $OUT/b) 2>/dev/null & (echo c > $OUT/c) & wait; cat $OUT/a $OUT/c; ls $OUT | wc -l",
        nothing,
        |_| {
            let mut waiting: Vec<Question> = Vec::new();
            Box::new(move |question, answers| {
                waiting.push(question.clone());
                if waiting.len() == 3 {
                    for question in waiting.drain(..).rev() {
                        if question.denial.object.as_path().ends_with("b") {
                            answers.answer_held_call(question.id, HeldAnswer::Refused);
                        } else {
                            grant(&question, answers);
                        }
                    }
                }
            })
        },
        |ran, _| assert_eq!(ran.stdout.replace(char::is_whitespace, ""), "ac2", "{}", ran.stderr),
    );
}

#[test]
fn both_ends_of_a_rename_are_asked_one_after_the_other() {
    let prepare = |out: &Path| {
        fs::create_dir(out.join("a")).unwrap();
        fs::create_dir(out.join("b")).unwrap();
        fs::write(out.join("a/f"), "f").unwrap();
    };
    let script = r#"perl -e 'rename("$ENV{OUT}/a/f", "$ENV{OUT}/b/g") or print $!+0'"#;
    let ends = |out: &Path| ["a/f", "b/g"].map(|name| format!("Rename {0} [write {0}]", out.join(name).display()));
    each(
        script,
        prepare,
        |_| yes(),
        |ran, out| {
            assert_eq!((ran.stdout.as_str(), ran.asked()), ("", ends(out).to_vec()));
            assert_eq!(read(out.join("b/g")), "f");
        },
    );
    let first_only = |_: &Path| -> React {
        let mut answered = false;
        Box::new(move |question, answers| {
            if std::mem::replace(&mut answered, true) {
                answers.answer_held_call(question.id, HeldAnswer::Refused);
            } else {
                grant(question, answers);
            }
        })
    };
    each(script, prepare, first_only, |ran, out| {
        assert_eq!((ran.stdout.as_str(), ran.asked()), ("13", ends(out).to_vec()));
        assert_eq!(read(out.join("a/f")), "f");
    });
}

#[test]
fn a_dead_processes_question_is_withdrawn_while_the_run_continues() {
    each(
        "(echo x > $OUT/f) & sleep 0.2; kill -9 $!; sleep 1; echo x > $OUT/g",
        nothing,
        |_| {
            let mut asked = 0;
            Box::new(move |question, answers| {
                asked += 1;
                if asked == 2 {
                    grant(question, answers);
                }
            })
        },
        |ran, out| {
            assert_eq!(ran.log, ["+1", "-1", "+2"]);
            assert!(!out.join("f").exists() && out.join("g").exists());
        },
    );
}

#[test]
fn a_protected_unit_that_exists_is_granted_in_place() {
    let script = "mkdir -p n && echo x > .hg/index.lock && mv .hg/index.lock .hg/index && cat .hg/index && \
                  mv .hg/index n/moved && mv n/moved .hg/back && ! ln .hg/back second 2>/dev/null && chmod 600 .hg/back && \
                  stat -c '%a %h' .hg/back; (echo x > .hg/hgrc) 2>/dev/null || echo refused";
    for level in LEVELS {
        let scene = Scene::bare("unit");
        let workspace = scene.workspace();
        fs::create_dir_all(workspace.join(".hg")).unwrap();
        let unit = workspace.join(".hg");
        let react: React = Box::new(move |question, answers| {
            if question.denial.grant == Some(Grant::Write(unit.clone())) {
                grant(question, answers);
            } else {
                answers.answer_held_call(question.id, HeldAnswer::Refused);
            }
        });
        let ran = run_holding(&shell(level, &scene, script), react);
        assert_eq!(ran.stdout, "x\n600 1\nrefused\n", "{level} {} {:#?}", ran.stderr, ran.denied());
        let settings = workspace.join(".hg/hgrc");
        let asked = [
            format!(
                "Create {} [write {}]",
                workspace.join(".hg/index.lock").display(),
                workspace.join(".hg").display()
            ),
            format!("Create {} [write {}]", settings.display(), settings.display()),
        ];
        assert_eq!(ran.asked(), asked);
        assert!(!settings.exists());
    }
}

#[test]
fn a_granted_pipe_is_waited_for_and_delays_no_other_call() {
    each(
        "(echo through > $OUT/p) & sleep 0.5; i=0; while [ $i -lt 20 ]; do echo $i > f; i=$((i+1)); done; cat f $OUT/p; wait",
        |out| {
            let made = Command::new("mkfifo").arg(out.join("p")).status().unwrap();
            assert!(made.success());
        },
        |_| yes(),
        |ran, _| {
            assert_eq!(ran.stdout, "19\nthrough\n", "{}", ran.stderr);
            assert_eq!(ran.questions.len(), 1);
        },
    );
}

#[test]
fn a_commit_continues_after_a_late_approval_and_runs_once() {
    if !have("git") {
        return;
    }
    for level in LEVELS {
        let scene = Scene::bare("commit");
        let workspace = scene.workspace();
        let git = |args: &[&str]| {
            let run = Command::new("git").args(args).current_dir(&workspace).env("HOME", &workspace).output().unwrap();
            assert!(run.status.success(), "{run:?}");
            String::from_utf8_lossy(&run.stdout).trim().to_owned()
        };
        git(&["init", "-q", "-b", "main"]);
        git(&["-c", "user.name=a", "-c", "user.email=a@b", "commit", "-q", "--allow-empty", "-m", "first"]);
        let script = "echo once >> ran; echo text > f && git add f && git config core.pager ./shown && git -c user.name=a -c user.email=a@b commit -q -m second";
        let mut plan = shell(level, &scene, script);
        plan.environment.insert("HOME".to_owned(), RawText::from(workspace.as_path()));
        let ran = run_holding(&plan, after(Duration::from_secs(2)));
        assert_eq!(ran.ended, ProcessExit::Exited(0), "{level} {} {:#?}", ran.stderr, ran.asked());
        let grants: Vec<_> = ran.questions.iter().map(|q| q.denial.grant.clone().unwrap().to_string()).collect();
        assert_eq!(grants, [format!("write {}", workspace.join(".git/config").display())]);
        let shown = &ran.questions[0].denial.rule;
        assert!(shown.ends_with("core.pager = ./shown"), "{shown}");
        assert_eq!(git(&["config", "core.pager"]), "./shown");
        assert_eq!(git(&["log", "--format=%s"]), "second\nfirst");
        assert_eq!(git(&["status", "--porcelain"]), "?? ran");
        git(&["fsck", "--strict"]);
        assert_eq!(read(workspace.join("ran")), "once\n");
    }
}

#[test]
fn a_socket_of_the_host_is_connected_to_after_a_yes() {
    if !have("perl") {
        return;
    }
    let script = r#"perl -MSocket -e 'for (1,2) { socket(S,AF_UNIX,SOCK_STREAM,0); print connect(S,sockaddr_un("$ENV{OUT}/s")) ? "connected " : ($!+0)." " }'"#;
    for (answer, expected) in [(true, "connected connected "), (false, "13 13 ")] {
        for level in LEVELS {
            let scene = Scene::bare("socket");
            let _listener = UnixListener::bind(scene.outside().join("s")).unwrap();
            let ran = run_holding(&shell(level, &scene, script), if answer { yes() } else { no() });
            assert_eq!(ran.stdout, expected, "{level} {}", ran.stderr);
            assert_eq!(ran.asked(), [format!("Connect {0} [socket {0}]", scene.outside().join("s").display())]);
        }
    }
}

/// The other work of a run while a question stands open, in microseconds: the
/// average and the worst of many granted opens.
fn opens_beside(level: IsolationLevel, hold: Option<Duration>) -> (f64, f64) {
    let scene = Scene::bare("beside");
    let asker = if hold.is_some() { "(echo x > $OUT/f) & sleep 0.2;" } else { "" };
    let seconds = hold.unwrap_or(Duration::from_secs(1)).as_secs_f64() - 0.5;
    let script = format!(
        r#"{asker} perl -MTime::HiRes=time -e '$end=time+{seconds}; while (($t=time)<$end) {{ open(F,">","f") or die; $d=time-$t; close F; $sum+=$d; $n++; $max=$d if $d>$max }} printf "%f %f %d", $sum/$n*1e6, $max*1e6, $n'; wait"#
    );
    let ran = run_holding(&shell(level, &scene, &script), after(hold.unwrap_or_default()));
    assert_eq!(ran.questions.len(), usize::from(hold.is_some()), "{}", ran.stderr);
    assert_eq!(scene.outside().join("f").exists(), hold.is_some());
    let mut words = ran.stdout.split(' ').map(|word| word.parse::<f64>().unwrap());
    let figures = (words.next().unwrap(), words.next().unwrap());
    // A few hundred a second on an emulated machine, a hundred thousand on others.
    assert!(words.next().unwrap() > 50.0, "{}", ran.stdout);
    figures
}

#[test]
fn an_open_question_delays_no_other_process() {
    if !have("perl") {
        return;
    }
    let seconds = std::env::var(LONG).ok().and_then(|s| s.parse().ok()).unwrap_or(2);
    for level in LEVELS {
        let (mean, worst) = opens_beside(level, None);
        let (held_mean, held_worst) = opens_beside(level, Some(Duration::from_secs(seconds)));
        println!(
            "{level}: a granted open takes {mean:.1} us, at worst {worst:.0}; \
             beside an open question of {seconds} s {held_mean:.1} us, at worst {held_worst:.0}"
        );
        // Other work on the machine may delay it, a wait for the answer may not.
        assert!(held_worst < 1e6, "{held_worst} us");
    }
}

/// Threads open paths that other threads rewrite all the time.
const RACER: &str = r#"
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>
#define OPENERS 3
static char paths[OPENERS][4096];
static volatile int over;
static int at;
static void *flip(void *unused) {
    while (!over)
        for (int i = 0; i < OPENERS; i++) {
            memcpy(paths[i] + at, "may", 3);
            for (int j = 0; j < 200; j++) __asm__ volatile("" ::: "memory");
            memcpy(paths[i] + at, "not", 3);
            for (int j = 0; j < 200; j++) __asm__ volatile("" ::: "memory");
        }
    return 0;
}
static void *opener(void *which) {
    long i = (long)which, n = 0, opened = 0;
    char *end = strchr(paths[i], 0);
    while (!over) {
        sprintf(end, "%ld-%ld", i, n++ % 400);
        int fd = open(paths[i], O_WRONLY | O_CREAT | O_TRUNC, 0644);
        if (fd >= 0) { opened++; close(fd); }
        if (n % 3 == 0 && unlink(paths[i]) == 0) opened++;
        if (n % 5 == 0) mkdir(paths[i], 0755);
        if (n % 7 == 0) rmdir(paths[i]);
    }
    return (void *)opened;
}
int main(int argc, char **argv) {
    pthread_t threads[OPENERS + 2];
    for (int i = 0; i < OPENERS; i++) at = sprintf(paths[i], "%s/", getenv("OUT")), strcat(paths[i], "may/");
    for (long i = 0; i < OPENERS; i++) pthread_create(&threads[i], 0, opener, (void *)i);
    for (int i = 0; i < 2; i++) pthread_create(&threads[OPENERS + i], 0, flip, 0);
    sleep(atoi(argv[1]));
    over = 1;
    long total = 0;
    for (int i = 0; i < OPENERS; i++) { void *n; pthread_join(threads[i], &n); total += (long)n; }
    printf("%ld\n", total);
}
"#;

#[test]
fn threads_that_rewrite_the_path_get_nothing_that_was_not_shown() {
    if !have("cc") {
        return;
    }
    let seconds: u64 = std::env::var(LONG).ok().and_then(|s| s.parse().ok()).unwrap_or(4);
    for level in LEVELS {
        let scene = Scene::bare("racer");
        let (out, workspace) = (scene.outside(), scene.workspace());
        for name in ["may", "not"] {
            fs::create_dir(out.join(name)).unwrap();
        }
        fs::write(out.join("not/0-0"), "keep").unwrap();
        fs::write(workspace.join("racer.c"), RACER).unwrap();
        let compiled = Command::new("cc")
            .args(["-O1", "-w", "-pthread", "-o", "racer", "racer.c"])
            .current_dir(&workspace)
            .status()
            .unwrap();
        assert!(compiled.success());
        let before = snapshot(&out.join("not"));
        let may = out.join("may");
        let react: React = Box::new(move |question, answers| {
            thread::sleep(Duration::from_micros(300));
            if question.denial.object.as_path().starts_with(&may) {
                grant(question, answers);
            } else {
                answers.answer_held_call(question.id, HeldAnswer::Refused);
            }
        });
        let ran = run_holding(&shell(level, &scene, &format!("./racer {seconds}")), react);
        assert_eq!(ran.ended, ProcessExit::Exited(0), "{}", ran.stderr);
        let did: u64 = ran.stdout.trim().parse().unwrap();
        println!("{level}: {did} done, {} asked, {} calls", ran.questions.len(), ran.report.calls);
        assert!(did > 0, "nothing was allowed at all");
        assert_eq!(snapshot(&out.join("not")), before);
        assert_eq!(fs::read_dir(&out).unwrap().count(), 2);
    }
}

/// So many children, each opening a file of its own, or all the same one.
fn bomb(name: &str) -> String {
    format!(
        r#"perl -e 'for $i (1..600) {{ next if fork; open(F,">","$ENV{{OUT}}/{name}") ? exit 0 : exit 1 }} $ok=0; while (wait>0) {{ $ok++ if $?==0 }} print $ok'"#
    )
}

#[test]
fn a_bomb_of_askers_is_bounded_and_ends() {
    if !have("perl") {
        return;
    }
    // So much room as an ordinary limit of open files gives.
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile);
    let ordinary = rustix::process::Rlimit { current: Some(1024), maximum: limit.maximum };
    broker_support::in_each_role("a_bomb_of_askers_is_bounded_and_ends", || {
        rustix::process::setrlimit(rustix::process::Resource::Nofile, ordinary).unwrap();
        for name in ["$i", "same"] {
            each(
                &bomb(name),
                nothing,
                |_| after(Duration::from_millis(if name == "same" { 3000 } else { 20 })),
                |ran, out| {
                    let ok: usize = ran.stdout.parse().unwrap();
                    let beyond =
                        ran.report.denials.iter().filter(|d| d.rule.ends_with("too many calls are held already"));
                    let beyond = beyond.map(|d| d.count).sum::<u64>() as usize;
                    println!("{name}: {ok} done, {} asked, {beyond} beyond", ran.questions.len());
                    assert_eq!(ok + beyond, 600);
                    assert!(ok >= 100 && beyond >= 1, "{ok} {beyond}");
                    let files = fs::read_dir(out).unwrap().count();
                    assert_eq!(files, if name == "same" { 1 } else { ok });
                    assert_eq!(ran.questions.len(), files);
                },
            );
            // Nobody answers: it ends when its first process does.
            each(
                &format!("({}) & sleep 2; kill -9 $$", bomb(name)),
                nothing,
                |_| Box::new(|_, _| {}),
                |ran, out| {
                    assert_eq!(ran.ended, ProcessExit::Signaled(9));
                    assert_eq!(ran.withdrawn.len(), ran.questions.len());
                    assert_eq!(fs::read_dir(out).unwrap().count(), 0);
                },
            );
        }
    });
}

#[test]
fn other_threads_of_the_asker_go_on() {
    for level in LEVELS {
        let scene = Scene::new("threads");
        let ran = run_holding(&scene.plan(level, "threads"), after(Duration::from_secs(5)));
        assert!(ran.stdout.contains("others 100 before, asked true"), "{level} {} {}", ran.stdout, ran.stderr);
        assert_eq!(ran.questions.len(), 1);
    }
}
