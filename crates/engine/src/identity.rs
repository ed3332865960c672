//! Which program a remembered approval was for: if the program, or a script
//! named to an interpreter, changes, the approval no longer fits and somebody
//! is asked again. Only consent rests on this, never containment.

use std::fs::{self, File};
use std::io::Read;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use stockade_model::{Digest, Plan, RawText};

/// Files up to this size are bound by content; larger ones by identity and
/// times, so that an assessment never reads a large binary.
const CONTENT_LIMIT_BYTES: u64 = 256 << 10;

/// Programs whose first file argument is what really runs.
const INTERPRETERS: &[&str] = &[
    "sh", "bash", "dash", "zsh", "ksh", "fish", "python", "python3", "perl", "ruby", "node", "deno", "bun", "php",
    "lua", "make", "env", "source",
];

/// Arguments that are looked at for a script.
const ARGUMENTS_LOOKED_AT: usize = 8;

/// Digest of what the program of a plan is now.
pub(crate) fn identity(plan: &Plan) -> Digest {
    let cwd = plan.cwd.as_path();
    let program = plan.argv.first().map(|program| resolve(program.as_path(), plan, cwd));
    let mut fields = vec![program.as_deref().map_or_else(Vec::new, fingerprint)];
    let is_interpreter = program.as_deref().and_then(Path::file_name).is_some_and(|name| {
        let name = name.to_string_lossy();
        let stem = name.trim_end_matches(|c: char| c.is_ascii_digit() || c == '.');
        INTERPRETERS.iter().any(|known| *known == name || *known == stem)
    });
    if is_interpreter {
        let script = plan.argv.iter().skip(1).take(ARGUMENTS_LOOKED_AT).find(|arg| !arg.as_bytes().starts_with(b"-"));
        fields.extend(script.map(|script| fingerprint(&cwd.join(script.as_path()))));
    }
    Digest::of_fields("stockade-identity-1", fields.iter().map(Vec::as_slice))
}

/// Where execvp(3) would find it.
fn resolve(program: &Path, plan: &Plan, cwd: &Path) -> PathBuf {
    if program.as_os_str().as_bytes().contains(&b'/') {
        return cwd.join(program);
    }
    let search = plan.environment.get("PATH").map(RawText::as_bytes).unwrap_or_default();
    search
        .split(|byte| *byte == b':')
        .map(|directory| cwd.join(RawText::from(directory).as_path()).join(program))
        .find(|candidate| fs::metadata(candidate).is_ok_and(|found| found.is_file() && found.mode() & 0o111 != 0))
        .unwrap_or_else(|| program.to_owned())
}

/// Path, file, size and times; content too where it is small. A file that
/// cannot be read is bound by what can be seen of it.
fn fingerprint(path: &Path) -> Vec<u8> {
    let path = fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
    let mut text = RawText::from(path.as_path()).escaped_reversibly();
    let Ok(found) = fs::metadata(&path) else { return text.into_bytes() };
    text.push_str(&format!(
        "\0{}:{}\0{}\0{}.{}\0{}.{}",
        found.dev(),
        found.ino(),
        found.size(),
        found.mtime(),
        found.mtime_nsec(),
        found.ctime(),
        found.ctime_nsec()
    ));
    let mut bytes = text.into_bytes();
    if found.is_file() && found.size() <= CONTENT_LIMIT_BYTES {
        bytes.push(0);
        if let Ok(file) = File::open(&path) {
            // What was read before an error still binds.
            let _ = file.take(CONTENT_LIMIT_BYTES).read_to_end(&mut bytes);
        }
    }
    bytes
}
