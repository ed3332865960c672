//! Repository settings that are harmless by themselves, and the forms of their values. They change
//! git's output, its parallelism and its storage, but neither the programs that it runs nor its
//! destinations. Pure data: the caller knows the earlier settings.

/// Settings without a subsection that have words as values.
const WORD_SETTINGS: &[(&str, &str)] = &[
    ("am", "keepcr"),
    ("am", "threeway"),
    ("apply", "ignorewhitespace"),
    ("blame", "blankboundary"),
    ("blame", "coloring"),
    ("blame", "date"),
    ("blame", "showemail"),
    ("blame", "showroot"),
    ("checkout", "guess"),
    ("checkout", "workers"),
    ("column", "branch"),
    ("column", "status"),
    ("column", "tag"),
    ("column", "ui"),
    ("commit", "cleanup"),
    ("commit", "status"),
    ("commit", "verbose"),
    ("core", "bigfilethreshold"),
    ("core", "checkstat"),
    ("core", "commitgraph"),
    ("core", "deltabasecachelimit"),
    ("core", "fscache"),
    ("core", "longpaths"),
    ("core", "loosecompression"),
    ("core", "multipackindex"),
    ("core", "packedgitlimit"),
    ("core", "preloadindex"),
    ("core", "untrackedcache"),
    ("diff", "colormovedws"),
    ("diff", "context"),
    ("diff", "indentheuristic"),
    ("diff", "interhunkcontext"),
    ("diff", "renamelimit"),
    ("diff", "statgraphwidth"),
    ("diff", "suppressblankempty"),
    ("diff", "wordregex"),
    ("fetch", "showforcedupdates"),
    ("fetch", "unpacklimit"),
    ("gc", "aggressivedepth"),
    ("gc", "cruftpacks"),
    ("gc", "packrefs"),
    ("gc", "writecommitgraph"),
    ("grep", "column"),
    ("grep", "extendedregexp"),
    ("grep", "fullname"),
    ("grep", "linenumber"),
    ("grep", "patterntype"),
    ("grep", "threads"),
    ("http", "lowspeedlimit"),
    ("http", "lowspeedtime"),
    ("http", "maxrequests"),
    ("http", "postbuffer"),
    ("log", "follow"),
    ("maintenance", "auto"),
    ("maintenance", "strategy"),
    ("merge", "autostash"),
    ("merge", "branchdesc"),
    ("merge", "directoryrenames"),
    ("merge", "renamelimit"),
    ("mergetool", "keepbackup"),
    ("mergetool", "keeptemporaries"),
    ("pack", "compression"),
    ("pack", "deltacachesize"),
    ("pack", "depth"),
    ("pack", "packsizelimit"),
    ("pack", "threads"),
    ("pack", "window"),
    ("pack", "windowmemory"),
    ("pack", "writereverseindex"),
    ("rebase", "forkpoint"),
    ("rebase", "rebasemerges"),
    ("repack", "usedeltabaseoffset"),
    ("repack", "writebitmaps"),
    ("revert", "reference"),
    ("stash", "showincludeuntracked"),
    ("stash", "showpatch"),
    ("stash", "showstat"),
    ("status", "aheadbehind"),
    ("status", "displaycommentprefix"),
    ("status", "relativepaths"),
    ("status", "renames"),
    ("submodule", "fetchjobs"),
    ("worktree", "guessremote"),
];

/// Named formats for commits.
const PRETTY_FORMATS: &[&[u8]] = &[b"oneline", b"short", b"medium", b"full", b"fuller", b"reference", b"email", b"raw"];

/// Git commands that only show data, and their options that start and write nothing.
const SHOWING_COMMANDS: &[&str] =
    &["blame", "describe", "diff", "log", "ls-files", "rev-parse", "shortlog", "show", "status"];
const SHOWING_OPTIONS: &[&str] = &[
    "--abbrev-commit",
    "--all",
    "--branch",
    "--cached",
    "--color",
    "--date-order",
    "--date=iso",
    "--date=relative",
    "--date=short",
    "--decorate",
    "--first-parent",
    "--graph",
    "--name-only",
    "--name-status",
    "--no-merges",
    "--oneline",
    "--patch",
    "--porcelain",
    "--short",
    "--staged",
    "--stat",
    "--word-diff",
    "-1",
    "-10",
    "-20",
    "-5",
    "-b",
    "-p",
    "-s",
    "-sb",
    "HEAD",
];

/// Tools that git itself can call when the user names one.
const KNOWN_TOOLS: &[&[u8]] = &[
    b"araxis",
    b"bc",
    b"diffuse",
    b"emerge",
    b"gvimdiff",
    b"kdiff3",
    b"meld",
    b"nvimdiff",
    b"nvimdiff3",
    b"opendiff",
    b"p4merge",
    b"tkdiff",
    b"vimdiff",
    b"vimdiff3",
    b"vscode",
    b"winmerge",
    b"xxdiff",
];

/// Returns whether a setting without a subsection is harmless.
pub(super) fn is_harmless_alone(section: &str, key: &str, value: &[u8]) -> bool {
    match (section, key) {
        ("core", "repositoryformatversion") | ("lfs", "repositoryformatversion") => matches!(value, b"0" | b"1"),
        (
            "core",
            "filemode" | "bare" | "symlinks" | "ignorecase" | "precomposeunicode" | "quotepath" | "trustctime"
            | "sparsecheckout" | "sparsecheckoutcone",
        ) => is_bool(value),
        ("core", "logallrefupdates") => is_bool(value) || value == b"always",
        // Only switched off: other values name a program, or switch on git's own.
        ("core", "fsmonitor") => is_bool(value) && !is_true(value),
        ("core", "pager") => matches!(value, b"cat" | b"less"),
        ("pager", _) => !value.is_empty() && is_bool(value),
        ("core", "autocrlf") => is_bool(value) || value == b"input",
        ("core", "safecrlf") => is_bool(value) || value == b"warn",
        ("core", "eol") => matches!(value, b"lf" | b"crlf" | b"native"),
        ("core", "abbrev" | "compression") => is_word(value),
        ("user", "name" | "email") => true,
        ("user", "useconfigonly") => is_bool(value),
        ("init", "defaultbranch") => is_branch(value),
        ("extensions", "worktreeconfig") => is_bool(value),
        // The meaning of a git file depends on it, and the longer form is rare.
        ("extensions", "objectformat") => value == b"sha1",
        ("extensions", "refstorage") => value == b"files",
        ("branch", "autosetupmerge" | "autosetuprebase") => is_word(value),
        ("pull", "rebase" | "ff") => is_word(value),
        // The other values push more than one branch, or push to the configured upstream.
        ("push", "default") => matches!(value, b"simple" | b"current" | b"nothing"),
        ("push", "autosetupremote" | "followtags") => is_word(value),
        ("merge", "conflictstyle" | "ff" | "stat" | "renames" | "log") => is_word(value),
        ("rebase", "autostash" | "autosquash" | "updaterefs" | "stat") => is_bool(value),
        ("fetch", "prune" | "prunetags" | "parallel" | "writecommitgraph") => is_word(value),
        ("diff", "renames" | "algorithm" | "colormoved" | "mnemonicprefix" | "noprefix") => is_word(value),
        ("commit" | "tag", "gpgsign") => is_bool(value) && !is_true(value),
        ("rerere", "enabled" | "autoupdate") => is_bool(value),
        ("submodule", "recurse") => is_bool(value),
        ("submodule", "active") => value == b"." || is_relative_path(value),
        ("gc", "auto" | "autopacklimit" | "autodetach") => is_word(value),
        ("status", "short" | "branch" | "showstash") => is_word(value),
        ("log", "date" | "decorate" | "abbrevcommit") => is_word(value),
        ("color", _) => is_colour(value),
        ("advice", _) => is_bool(value),
        // A file with names of commits.
        ("blame", "ignorerevsfile") => is_relative_path(value),
        ("http", "version") => matches!(value, b"HTTP/1.1" | b"HTTP/2"),
        ("diff" | "merge", "tool") => KNOWN_TOOLS.contains(&value),
        ("gui", "wmstate" | "geometry") => is_colour(&value.iter().copied().filter(|b| *b != b'+').collect::<Vec<_>>()),
        ("core" | "apply", "whitespace") => {
            value.split(|b| *b == b',').all(|word| is_word(without_minus(word.trim_ascii_start())))
        }
        ("branch" | "tag", "sort") => without_minus(value).split(|b| *b == b':').all(is_word),
        ("alias", _) => is_alias_that_shows(value),
        // Other values make git examine modules, and run git there.
        ("diff", "submodule") => value == b"short",
        ("status", "submodulesummary") => is_bool(value) && !is_true(value),
        ("core", "commentchar") => value == b"auto" || matches!(value, [one] if one.is_ascii_punctuation()),
        ("format", "pretty") => PRETTY_FORMATS.contains(&value),
        ("index", "sparse") => is_bool(value) && !is_true(value),
        ("index", "version") => matches!(value, b"2" | b"3"),
        ("lfs", "locksverify") => is_bool(value),
        _ => WORD_SETTINGS.contains(&(section, key)) && is_word(value),
    }
}

/// Returns whether an alias is another name of a command that only shows data. A shell runs an
/// alias that begins with `!`, and options can name programs and files. The user may expect a
/// harmless alias of this name: for example, `git lg` must not check out files.
fn is_alias_that_shows(value: &[u8]) -> bool {
    let Ok(text) = std::str::from_utf8(value) else { return false };
    let mut words = text.split(' ').filter(|word| !word.is_empty());
    let Some(command) = words.next() else { return false };
    SHOWING_COMMANDS.contains(&command) && words.all(|word| SHOWING_OPTIONS.contains(&word))
}

/// Returns whether a setting with a subsection and without an address is harmless.
pub(super) fn is_harmless_named(section: &str, subsection: &[u8], key: &str, value: &[u8]) -> bool {
    match (section, key) {
        ("color", _) => is_colour(value),
        // The authentication method that a server has asked for.
        ("lfs", "access") => matches!(value, b"basic" | b"private" | b"none"),
        ("lfs", "locksverify") => is_bool(value),
        ("maintenance", "enabled") => is_bool(value),
        ("maintenance", "schedule") => matches!(value, b"hourly" | b"daily" | b"weekly"),
        // Other values name a directory of hooks. No value may be an option to git.
        ("gitflow", _) => match subsection {
            b"branch" => is_branch(value),
            b"prefix" => is_branch(value.strip_suffix(b"/").unwrap_or(value)),
            _ => false,
        },
        _ => false,
    }
}

pub(super) fn is_bool(value: &[u8]) -> bool {
    let value = value.to_ascii_lowercase();
    is_true(&value) || matches!(&value[..], b"false" | b"no" | b"off" | b"0" | b"")
}

pub(super) fn is_true(value: &[u8]) -> bool {
    matches!(&value.to_ascii_lowercase()[..], b"true" | b"yes" | b"on" | b"1")
}

pub(super) fn is_word(value: &[u8]) -> bool {
    !value.starts_with(b"-") && value.iter().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'.'))
}

/// Returns a word without the minus sign that inverts it.
fn without_minus(word: &[u8]) -> &[u8] {
    word.strip_prefix(b"-").unwrap_or(word)
}

fn is_colour(value: &[u8]) -> bool {
    value.iter().all(|b| b.is_ascii_alphanumeric() || matches!(b, b' ' | b'#' | b'-'))
}

/// Returns whether a remote's name cannot be taken for an address or a path.
pub(super) fn is_nick(remote: &[u8]) -> bool {
    remote.first().is_some_and(u8::is_ascii_alphanumeric)
        && remote.iter().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.'))
}

pub(super) fn is_branch(branch: &[u8]) -> bool {
    let is_odd = |b: &u8| b.is_ascii_control() || b" ~^:?*[\\".contains(b);
    !branch.is_empty() && !branch.starts_with(b"-") && !branch.iter().any(is_odd) && are_names(branch)
}

/// Returns whether this is a path beneath the top, through no directory of git's.
pub(super) fn is_relative_path(path: &[u8]) -> bool {
    !path.starts_with(b"-") && !path.starts_with(b":") && are_names(path)
}

/// Returns whether every component is a name, and none is the name of a repository.
pub(super) fn are_names(path: &[u8]) -> bool {
    path.split(|b| *b == b'/').all(|part| {
        let folded = super::fold_name(part);
        !matches!(part, b"" | b"." | b"..") && folded.as_ref() != b".git" && folded.as_ref() != b"git~1"
    })
}
