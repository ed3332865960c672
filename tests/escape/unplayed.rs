//! Rows that are not played in containers, each with its reason: as data, so that a
//! row that nobody thought of is played.

use crate::row::Row;
use crate::way::Kind;

const OF_RUN: &str = "its steps are those of `run`; sandboxes are held to theirs by a suite of their own";
const USER_IDS: &str =
    "there is no user namespace unless the engine has one for all containers: the ids are the host's";
const COUNTED: &str = "without a user namespace they are the user's own, and counted with them";
const NOT_THERE: &str = "the place is not there, so nothing is refused whose program could be told";

const HOST_SYSTEM: &str = "it works with what the host has, and an image has another system";
const BEYOND: &str = "nothing that is not in the container can be given to its commands";

/// In no container.
const NOWHERE: &[(&str, &str)] = &[
    ("esc-0123", USER_IDS),
    ("esc-0128", NOT_THERE),
    ("esc-0211", COUNTED),
    ("esc-0213", COUNTED),
    ("works-read", HOST_SYSTEM),
    ("works-process-substitution", HOST_SYSTEM),
    ("works-missing-grant", BEYOND),
    ("grant-directory", BEYOND),
    ("grant-file", BEYOND),
];

const OWN_KERNEL: &str = "it asks what the host's kernel answers, and this is gVisor's own";
const COPIED: &str = "its workspace is a copy, which nobody reads back";
const OWN_LAUNCHER: &str = "nothing there keeps a command from ending what serves its sandbox, and that with it";
const UNSEEN: &str = "whether gVisor holds limits nobody here sees, and the report says so";

const OLD: &str = "gVisor of 2022 knows no `statx` as programs of today call it";

/// Not if the isolation around the command is the only one.
const NOT_WITHIN_GVISOR: &[(&str, &str)] = &[
    ("esc-0041", OWN_KERNEL),
    ("esc-0055", OWN_KERNEL),
    ("esc-0061", OWN_KERNEL),
    ("esc-0070", COPIED),
    ("esc-0083", OWN_LAUNCHER),
    ("no-terminal-of-the-persons", COPIED),
    ("esc-0087", OWN_KERNEL),
    ("esc-0093", OWN_KERNEL),
    ("esc-0094", OWN_KERNEL),
    ("esc-0095", OWN_KERNEL),
    ("esc-0096", OWN_KERNEL),
    ("esc-0109", OWN_KERNEL),
    ("esc-0112", OWN_KERNEL),
    ("esc-0127", OWN_LAUNCHER),
    ("esc-0186", UNSEEN),
    ("esc-0188", UNSEEN),
    ("esc-0190", UNSEEN),
    ("esc-0191", UNSEEN),
    ("esc-0192", UNSEEN),
    ("esc-0203", UNSEEN),
    ("grant-git-not-hooks", COPIED),
    ("res-cpu-time", UNSEEN),
    ("settings-of-the-kernel", OWN_KERNEL),
    ("disks-of-the-host", OWN_KERNEL),
    ("works-devices", OLD),
    ("works-read-only", OLD),
    ("works-umask", OLD),
    ("works-writes", OLD),
];

/// Why a row is not played in containers of this kind.
pub fn why(row: &Row, kind: &Kind) -> Option<&'static str> {
    if row.special.is_some() {
        return Some(OF_RUN);
    }
    let within: &[_] = if kind.has_native_isolation() { &[] } else { NOT_WITHIN_GVISOR };
    NOWHERE.iter().chain(within).find(|(id, _)| *id == row.id).map(|(_, why)| *why)
}

/// Rows that are named here and not there.
pub fn unknown(rows: &[&Row]) -> Vec<&'static str> {
    let named = NOWHERE.iter().chain(NOT_WITHIN_GVISOR).map(|(id, _)| *id);
    named.filter(|id| !rows.iter().any(|row| row.id == *id)).collect()
}
