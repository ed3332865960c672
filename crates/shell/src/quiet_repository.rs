//! Checks whether a repository is quiet: it configures nothing that git starts when it changes the
//! repository. The check uses the bytes of its files; the caller reads them.

use crate::knowledge::lists;
use crate::sanitize::has_only;

/// Returns whether a repository's configuration (the bytes of `.git/config`) names nothing that git
/// starts: it has only known sections and keys.
pub fn is_quiet_configuration(config: &[u8]) -> bool {
    has_only(config, lists::QUIET_SECTIONS, &["diff", "merge", "core", "gc", "init", "commit"])
}

/// Returns whether a configuration of the user leaves the hooks in each repository. A configuration
/// that sets their directory, or includes another file, may lead into the work tree.
pub fn leaves_hooks(config: &[u8]) -> bool {
    let text = config.to_ascii_lowercase();
    let says = |needle: &[u8]| text.windows(needle.len()).any(|part| part == needle);
    !says(b"hookspath") && !says(b"include")
}

/// Returns whether git does not start this file in a directory of hooks.
pub fn is_quiet_hook(name: &[u8]) -> bool {
    name.ends_with(b".sample")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(config: &str, quiet: bool) {
        assert_eq!(is_quiet_configuration(config.as_bytes()), quiet, "{config}");
    }

    #[test]
    fn configurations_that_start_nothing_are_quiet() {
        check("", true);
        check("[core]\n\trepositoryformatversion = 0\n\tbare = false\n\tfsmonitor = false\n", true);
        check("[remote \"origin\"]\n\turl = https://x\n\tfetch = +refs/heads/*:refs/remotes/origin/*\n", true);
        check("[alias]\n\tx = !./x\n\tst = status\n[core]\n\tpager = less\n", true);
        check("[branch \"main\"]\n\tremote = origin\n\tmerge = refs/heads/main\n[user]\n\tname = A\n", true);
        for loud in [
            "[core]\n\thooksPath = .githooks\n",
            "[core]\n\tfsmonitor = true\n",
            "[core]\n\tfsmonitor = ./x\n",
            "[core]\n\tfsmonitor\n",
            "[core]\n\tfsmonitor = false\\\n\t./x\n",
            "[core]\n\teditor = ./x\n",
            "[core]\n\tpager = ./x\n",
            "[core]\n\tsshCommand = ./x\n",
            "[core]\n\tworktree = /\n",
            "[core]\n\tattributesFile = x\n",
            "[pager]\n\tadd = ./x\n",
            "[gpg]\n\tprogram = ./x\n",
            "[filter \"x\"]\n\tclean = ./x\n",
            "[merge \"x\"]\n\tdriver = ./x\n",
            "[merge]\n\ttool = x\n",
            "[diff]\n\texternal = ./x\n",
            "[interactive]\n\tdiffFilter = ./x\n",
            "[sequence]\n\teditor = ./x\n",
            "[include]\n\tpath = ../x\n",
            "[gc]\n\trecentObjectsHook = ./x\n",
            "[pull]\n\ttwohead = x\n",
            "[branch \"x\"]\n\tmergeOptions = -s x\n",
            "[remote \"x\"]\n\tvcs = x\n",
            "[remote \"x\"]\n\tpromisor = true\n",
            "[extensions]\n\tpartialClone = x\n",
            "[extensions]\n\tworktreeConfig = true\n",
            "[init]\n\ttemplateDir = x\n",
            "[submodule \"x\"]\n\tupdate = !./x\n",
        ] {
            check(loud, false);
        }
    }

    #[test]
    fn hooks_of_all_repositories_are_seen() {
        assert!(leaves_hooks(b"[user]\n\tname = x\n[core]\n\teditor = vim\n"));
        assert!(!leaves_hooks(b"[core]\n\tHooksPath = .githooks\n"));
        assert!(!leaves_hooks(b"[includeIf \"gitdir:/\"]\n\tpath = x\n"));
        assert!(is_quiet_hook(b"pre-commit.sample") && !is_quiet_hook(b"pre-commit"));
    }
}
