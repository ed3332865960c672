//! Processes, as far as they are of a case: the host's, and those that it does not see.

use std::fs;

/// A word that no other process of this machine has: so many seconds to sleep.
pub fn mark(number: u32) -> String {
    format!("9{number}{:07}", std::process::id())
}

/// How many processes sleep as long as this.
pub fn sleeping(mark: &str) -> usize {
    let entries = fs::read_dir("/proc").unwrap().flatten().map(|entry| entry.path());
    let line = format!("sleep\0{mark}\0");
    entries.filter(|path| fs::read(path.join("cmdline")).is_ok_and(|words| words == line.as_bytes())).count()
}

/// A program that prints the same of those which it sees itself.
pub fn counting(mark: &str) -> String {
    format!(
        "import glob
def sleeps(path):
  try: return open(path, 'rb').read() == b'sleep\\0{mark}\\0'
  except OSError: return False
print(sum(map(sleeps, glob.glob('/proc/[0-9]*/cmdline'))))"
    )
}
