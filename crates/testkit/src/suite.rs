//! Runs the tasks of a suite in parallel and reports the result of each: passed, failed, or not run
//! with a reason. This module must not depend on the tasks.

use std::collections::VecDeque;
use std::fmt::Display;
use std::process::ExitCode;
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Result;

use crate::{ProgramEnd, ProgramOutput};

/// Exit code of a task's process that saw the required result.
pub const PASSED: u8 = 0;
/// Exit code of a task that saw another result.
pub const FAILED: u8 = 1;
/// Exit code of a task that this machine cannot run; its output gives the reason.
pub const UNAVAILABLE: u8 = 77;
/// Exit code of a task whose subject declares that it does not support the required feature, and
/// refused it as clearly as required. Its output gives the refusal.
pub const DECLARED: u8 = 78;

/// Task that neither passed nor failed, with the reason.
#[derive(Clone, Debug)]
pub struct SkippedTask {
    /// Name of the task.
    pub task: String,
    /// Reason.
    pub why: String,
}

/// Results of the tasks.
#[derive(Clone, Debug, Default)]
pub struct SuiteTally {
    /// Number of passed tasks.
    pub passed: usize,
    /// Failed tasks, with the observed result.
    pub failed: Vec<(String, String)>,
    /// Tasks that were refused as declared, with the refusal.
    pub declared: Vec<(String, String)>,
    /// Tasks that did not run.
    pub not_run: Vec<SkippedTask>,
}

/// Runs the tasks, `lanes` at a time, and prints a line for each. `start` runs one in a process of
/// its own, with a time-out.
pub fn run_tasks<T: Display + Send>(
    tasks: Vec<T>,
    lanes: usize,
    start: impl Fn(&T) -> Result<ProgramOutput> + Sync,
) -> SuiteTally {
    let queue = Mutex::new(VecDeque::from(tasks));
    let tally = Mutex::new(SuiteTally::default());
    let next = || queue.lock().unwrap_or_else(PoisonError::into_inner).pop_front();
    thread::scope(|scope| {
        for _ in 0..lanes {
            scope.spawn(|| {
                while let Some(task) = next() {
                    let began = Instant::now();
                    let (ended, text) = match start(&task) {
                        Ok(output) => (output.ended, output.combined_text()),
                        Err(error) => (ProgramEnd::Code(FAILED.into()), format!("{error:#}")),
                    };
                    let mut tally = tally.lock().unwrap_or_else(PoisonError::into_inner);
                    tally.record_result(task.to_string(), ended, text.trim(), began.elapsed());
                }
            });
        }
    });
    tally.into_inner().unwrap_or_else(PoisonError::into_inner)
}

impl SuiteTally {
    /// Adds the results of other tasks.
    pub fn add_results(&mut self, other: Self) {
        self.passed += other.passed;
        self.failed.extend(other.failed);
        self.declared.extend(other.declared);
        self.not_run.extend(other.not_run);
    }

    fn record_result(&mut self, task: String, ended: ProgramEnd, text: &str, elapsed: Duration) {
        let ms = elapsed.as_millis();
        match ended {
            ProgramEnd::Code(code) if code == i32::from(PASSED) => {
                println!("ok      {task} ({ms} ms)");
                self.passed += 1;
            }
            ProgramEnd::Code(code) if code == i32::from(DECLARED) => {
                println!("refused {task} ({ms} ms): {text}");
                self.declared.push((task, text.to_owned()));
            }
            ProgramEnd::Code(code) if code == i32::from(UNAVAILABLE) => {
                println!("not run {task}: {text}");
                self.not_run.push(SkippedTask { task, why: text.to_owned() });
            }
            _ => {
                println!("FAILED  {task} ({ms} ms)\n        {}", text.replace('\n', "\n        "));
                self.failed.push((task, format!("{ended:?}: {text}")));
            }
        }
    }

    /// Prints the summary, and returns the exit code of the suite.
    pub fn print_report(&self) -> ExitCode {
        let lines = |title: &str, lines: Vec<String>| {
            if !lines.is_empty() {
                println!("\n{title}:");
                lines.iter().for_each(|line| println!("  {line}"));
            }
        };
        let first = |(task, text): &(String, String)| format!("{task}: {}", text.lines().next().unwrap_or_default());
        lines("refused as declared", self.declared.iter().map(first).collect());
        lines("not run", self.not_run.iter().map(|n| format!("{}: {}", n.task, n.why)).collect());
        lines("failed", self.failed.iter().map(first).collect());
        let declared = match self.declared.len() {
            0 => String::new(),
            n => format!("{n} refused as declared, "),
        };
        println!("\n{} passed, {declared}{} failed, {} not run", self.passed, self.failed.len(), self.not_run.len());
        if self.failed.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_of_all_files_are_distinguished() {
        let tasks: Vec<u8> = vec![PASSED, FAILED, UNAVAILABLE, DECLARED, PASSED];
        let tally = run_tasks(tasks, 2, |code| {
            Ok(ProgramOutput {
                ended: ProgramEnd::Code((*code).into()),
                stdout: format!("said {code}\n"),
                stderr: String::new(),
                elapsed: Duration::ZERO,
                held_open: false,
            })
        });
        assert_eq!(tally.passed, 2);
        assert_eq!(tally.failed, [("1".to_owned(), "Code(1): said 1".to_owned())]);
        assert_eq!(tally.declared, [("78".to_owned(), "said 78".to_owned())]);
        assert_eq!((tally.not_run.len(), tally.not_run[0].why.as_str()), (1, "said 77"));
        let silent = run_tasks(vec!["x"], 1, |_| anyhow::bail!("cannot start"));
        assert_eq!(silent.failed[0].1, "Code(1): cannot start");
    }
}
