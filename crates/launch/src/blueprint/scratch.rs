//! The entries of a run's own filesystem before anything is attached.

use std::ffi::{CStr, CString};
use std::path::Path;

use rustix::process::geteuid;

use crate::error::LaunchError;
use crate::layout::{MountAttachment, MountKind, c_string, find_devices};
use crate::options::LaunchOptions;
use crate::step::ScratchEntry;

/// Returns the entries of the run's own filesystem before anything is attached.
pub(crate) fn scratch_entries(
    attachments: &[MountAttachment],
    launch_options: &LaunchOptions,
) -> Result<Vec<ScratchEntry>, LaunchError> {
    use ScratchEntry::{Directory, EmptyFile, File, Link};
    let roots: Vec<&MountAttachment> = attachments.iter().filter(|a| a.is_written()).collect();
    let mut entries = vec![
        Directory(c"dev".into(), 0o755),
        Directory(c"dev/pts".into(), 0o755),
        Directory(c"dev/shm".into(), 0o755),
        Directory(c"void".into(), 0o555),
        EmptyFile(c"empty".into()),
    ];
    for device in find_devices()? {
        entries.push(EmptyFile(join_path(c"dev", device.name)));
    }
    for (text, name) in [
        (c"pts/ptmx", c"ptmx"),
        (c"/proc/self/fd", c"fd"),
        (c"/proc/self/fd/0", c"stdin"),
        (c"/proc/self/fd/1", c"stdout"),
        (c"/proc/self/fd/2", c"stderr"),
    ] {
        entries.push(Link(text.into(), join_path(c"dev", name)));
    }
    for attachment in attachments {
        match &attachment.mount_kind {
            MountKind::Private(name) if *name == c"run" => {
                entries.extend(run_entries()?);
                for named in &launch_options.named {
                    entries.push(File(join_path(name, &named.file_name()?), named.content.clone()));
                }
            }
            MountKind::Provided(index) => {
                let content = launch_options.files.get(*index).map(|(_, content)| content.clone());
                entries.push(File(attachment.placeholder.clone(), content.unwrap_or_default()));
            }
            MountKind::Private(name) => entries.push(Directory((*name).into(), 0o1777)),
            MountKind::Hidden(children) if attachment.directory => {
                entries.push(Directory(attachment.placeholder.clone(), 0o755));
                for (name, directory) in children {
                    let path = join_path(&attachment.placeholder, name);
                    entries.push(if *directory {
                        Directory(path, 0o755)
                    } else {
                        hidden_file(attachment, &roots, path)
                    });
                }
            }
            MountKind::Hidden(_) => entries.push(hidden_file(attachment, &roots, attachment.placeholder.clone())),
            _ => {}
        }
    }
    Ok(entries)
}

/// Returns the placeholder `path` of a hidden file. In a writable directory of the run it cannot be
/// opened, because `git commit -a`, for example, would commit an empty file. Elsewhere it can be
/// opened, so that the opening is noticed.
fn hidden_file(hidden: &MountAttachment, roots: &[&MountAttachment], path: CString) -> ScratchEntry {
    let is_in_root =
        |root: &&MountAttachment| hidden.path.as_bytes().starts_with(&[root.path.as_bytes(), b"/"].concat());
    if roots.iter().any(is_in_root) { ScratchEntry::ClosedFile(path) } else { ScratchEntry::EmptyFile(path) }
}

/// Returns the entries of `/run`: the user's own directory, and the links by which some systems
/// find their programs.
fn run_entries() -> Result<Vec<ScratchEntry>, LaunchError> {
    use ScratchEntry::{Directory, Link};
    let user = c_string(format!("run/user/{}", geteuid().as_raw()).as_ref())?;
    let mut entries = vec![
        Directory(c"run".into(), 0o755),
        Directory(c"run/lock".into(), 0o1777),
        Directory(c"run/user".into(), 0o755),
        Directory(user, 0o700),
    ];
    for name in ["current-system", "opengl-driver"] {
        if let Ok(text) = Path::new("/run").join(name).read_link() {
            entries.push(Link(c_string(text.as_os_str())?, c_string(format!("run/{name}").as_ref())?));
        }
    }
    Ok(entries)
}

fn join_path(directory: &CStr, name: &CStr) -> CString {
    let mut bytes = directory.to_bytes().to_vec();
    bytes.push(b'/');
    bytes.extend_from_slice(name.to_bytes());
    // Neither part contains a NUL, because both come from C strings.
    CString::new(bytes).unwrap_or_default()
}
