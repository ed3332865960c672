//! Lists of names in `knowledge/*.txt`: one name a line; a line that starts with `#` is a comment.
//!
//! A list is searched line by line and never built, so that a list that no request needs takes no time.

/// A list of names in the text of a data file.
#[derive(Clone, Copy, Debug)]
pub(crate) struct NameList(&'static str);

impl NameList {
    pub(crate) const fn new(text: &'static str) -> Self {
        Self(text)
    }

    pub(crate) fn names(self) -> impl Iterator<Item = &'static str> {
        self.0.lines().filter(|line| !line.starts_with('#'))
    }

    pub(crate) fn contains(self, name: &str) -> bool {
        self.names().any(|listed| listed == name)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn names_are_whole_lines() {
        let list = NameList::new("# comment\na b\nc\n");
        assert_eq!(list.names().collect::<Vec<_>>(), ["a b", "c"]);
        assert!(list.contains("c") && !list.contains("a") && !list.contains("# comment") && !list.contains(""));
    }

    #[test]
    fn data_files_are_well_formed() {
        let directory = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("knowledge");
        for file in directory.read_dir().unwrap() {
            let path = file.unwrap().path();
            let text = std::fs::read_to_string(&path).unwrap();
            assert!(text.starts_with("# ") && text.ends_with('\n'), "{}", path.display());
            let names = NameList::new(text.leak()).names().collect::<Vec<_>>();
            let is_plain = |name: &&str| !name.is_empty() && name.trim() == *name && !name.contains(char::is_control);
            assert!(names.iter().all(is_plain), "{}", path.display());
            assert_eq!(names.iter().collect::<BTreeSet<_>>().len(), names.len(), "{}", path.display());
        }
    }
}
