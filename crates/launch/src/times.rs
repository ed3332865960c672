//! Timing of a start inside the sandbox: the marks of the init and the command as trace events of
//! the target [`EVENT_TARGET`]. The fields are `process`, `step`, and `from` and `to` in nanoseconds of
//! the clock of [`time_marks::monotonic_nanoseconds`]. There are no events unless marks are kept.

use stockade_sys::time_marks;
use tracing::trace;

use super::blueprint::Blueprint;
use super::child::{
    COMMAND_MADE_MARK, COMMAND_STAGES, ENDED_MARK, FIRST_STAGE_MARK, INIT_MADE_MARK, REAPED_MARK, RELEASED_MARK,
};

/// Target of the events of this file.
pub const EVENT_TARGET: &str = "stockade::times";

/// Reports the marks up to the time when the command was held before its first instruction.
pub(super) fn tell_building(blueprint: &Blueprint) {
    let Some(begun) = time_marks::take_mark(INIT_MADE_MARK) else { return };
    let step_marks = (0..blueprint.step_count().min(FIRST_STAGE_MARK))
        .filter_map(|index| Some((index, time_marks::take_mark(index)?)));
    let step_marks: Vec<(&str, String, u64)> = step_marks
        .map(|(index, to)| {
            let (name, detail) = blueprint.step_text(index as u32);
            (name, detail, to)
        })
        .collect();
    // Consecutive steps of one kind are one row, because most plans attach dozens of paths.
    let mut from = begun;
    for alike in step_marks.chunk_by(|one, next| one.0 == next.0) {
        let (Some((name, first, _)), Some((.., to))) = (alike.first(), alike.last()) else { continue };
        let more = if alike.len() > 1 { format!(" and {} more", alike.len() - 1) } else { String::new() };
        report_step("init", &format!("{name}: {first}{more}"), from, *to);
        from = *to;
    }
    let Some(mut last) = time_marks::take_mark(COMMAND_MADE_MARK) else { return };
    for (stage, (name, detail)) in COMMAND_STAGES.iter().enumerate() {
        let Some(to) = time_marks::take_mark(FIRST_STAGE_MARK + stage) else { continue };
        report_step("command", &format!("{name}: {detail}"), last, to);
        last = to;
    }
}

/// Reports the marks from then to the end.
pub(super) fn tell_end() {
    let (released, ended, reaped) =
        (time_marks::take_mark(RELEASED_MARK), time_marks::take_mark(ENDED_MARK), time_marks::take_mark(REAPED_MARK));
    if let (Some(released), Some(ended)) = (released, ended) {
        report_step("command", "run: from its exec until the init saw its end", released, ended);
    }
    if let (Some(ended), Some(reaped)) = (ended, reaped) {
        report_step("init", "end: every other process", ended, reaped);
    }
}

fn report_step(process: &str, step: &str, from: u64, to: u64) {
    trace!(target: EVENT_TARGET, process, step, from, to);
}
