//! Paths and work trees that git's settings files name, as one survey reads them. Each file is read
//! and parsed once, because many `.git` files may lead to one repository.

use std::cell::RefCell;
use std::collections::HashMap;
use std::rc::Rc;

use super::git::{MAX_SETTINGS_BYTES, ReferencedPath, find_named_paths};
use super::settings_text::parse_entries;
use super::view::RootView;

/// Contents of one settings file that matter to a survey.
#[derive(Debug, Default)]
pub(super) struct FileSettings {
    /// Paths that the settings name.
    pub named: Vec<ReferencedPath>,
    /// Values of `core.worktree`.
    pub work_trees: Vec<Vec<u8>>,
}

impl FileSettings {
    fn parse(text: &[u8], home: Option<&[u8]>) -> Self {
        let mut settings = Self::default();
        for (section, key, value) in parse_entries(text) {
            settings.named.extend(find_named_paths(&section, &key, &value, home));
            if section == "core" && key == "worktree" {
                settings.work_trees.push(value);
            }
        }
        settings
    }
}

/// Parsed settings files, by device and inode.
#[derive(Debug, Default)]
pub(super) struct SettingsCache {
    files: RefCell<HashMap<(u64, u64), Rc<FileSettings>>>,
    /// Replaces `~` in paths.
    home: Option<Vec<u8>>,
}

impl SettingsCache {
    /// Creates an empty cache; `home` replaces `~` in paths.
    pub(super) fn new(home: Option<Vec<u8>>) -> Self {
        Self { files: RefCell::default(), home }
    }

    /// Returns the settings in `file`, with all links followed, or `None` if there is no such file.
    ///
    /// # Errors
    /// As for [`RootView::read_settings`].
    pub(super) fn load(&self, view: RootView<'_>, file: &[u8]) -> Result<Option<Rc<FileSettings>>, Vec<u8>> {
        let Some(stat) = view.resolve_path(file).and_then(|chain| view.stat_path(&chain.end).ok()) else {
            return Ok(None);
        };
        let key = (stat.st_dev, stat.st_ino);
        if let Some(known) = self.files.borrow().get(&key) {
            return Ok(Some(Rc::clone(known)));
        }
        let Some(text) = view.read_settings(file, MAX_SETTINGS_BYTES)? else { return Ok(None) };
        let settings = Rc::new(FileSettings::parse(&text, self.home.as_deref()));
        self.files.borrow_mut().insert(key, Rc::clone(&settings));
        Ok(Some(settings))
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use super::*;

    #[test]
    fn one_file_is_parsed_once_by_all_its_paths() {
        let scratch = tempfile::tempdir().unwrap();
        std::fs::write(scratch.path().join("config"), "[core]\nhooksPath = ~/h\nworktree = ../w\n").unwrap();
        std::os::unix::fs::symlink("config", scratch.path().join("link")).unwrap();
        let root = std::fs::File::open(scratch.path()).unwrap();
        let (view, cache) = (RootView::new(root.as_fd()), SettingsCache::new(Some(b"/home".to_vec())));
        let first = cache.load(view, b"/config").unwrap().unwrap();
        assert_eq!(first.named, [ReferencedPath::File(b"/home/h".to_vec())]);
        assert_eq!(first.work_trees, [b"../w".to_vec()]);
        assert!(Rc::ptr_eq(&first, &cache.load(view, b"/link").unwrap().unwrap()));
        assert!(cache.load(view, b"/none").unwrap().is_none());
    }
}
