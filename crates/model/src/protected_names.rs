//! Names that carry code or settings which the host later trusts.

use NameClass::{Agent, Judged, Runs};

/// Class of a protected name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NameClass {
    /// Belongs to the engine or to an agent: writable with a grant only.
    Agent,
    /// Runs automatically on the host and is not visible in a review: writable with a grant only.
    Runs,
    /// Like `Runs`, but its content is judged: harmless content is written without a question.
    Judged,
}

/// Names that are protected in every writable directory, whether or not they exist (L7), with their class
/// and the program that reads them.
///
/// An entry with a slash is separate from its parent entry: a grant for `.git` does not include
/// `.git/hooks`.
pub const PROTECTED_NAMES: &[(&str, NameClass, &str)] = &[
    (".git", Judged, "git"),
    (".git/hooks", Runs, "git"),
    (".git/config", Judged, "git"),
    (".git/config.worktree", Judged, "git"),
    (".git/commondir", Judged, "git"),
    (".git/info/attributes", Runs, "git"),
    (".git/modules", Judged, "git"),
    (".git/worktrees", Judged, "git"),
    (".gitmodules", Judged, "git"),
    (".hg", Runs, "Mercurial"),
    (".hg/hgrc", Runs, "Mercurial"),
    (".svn", Runs, "Subversion"),
    (".jj", Runs, "Jujutsu"),
    (".stockade", Agent, "Stockade"),
    (".stockade.toml", Agent, "Stockade"),
    (".sandbox", Agent, "other sandboxes"),
    (".sandbox.json", Agent, "other sandboxes"),
    (".agents", Agent, "agents"),
    (".codex", Agent, "Codex"),
    (".claude", Agent, "Claude Code"),
    (".claude.json", Agent, "Claude Code"),
    (".cursor", Agent, "Cursor"),
    (".gemini", Agent, "Gemini CLI"),
    (".aider.conf.yml", Agent, "aider"),
    (".continue", Agent, "Continue"),
    (".windsurf", Agent, "Windsurf"),
    (".mcp.json", Agent, "servers of the Model Context Protocol"),
    (".copilot", Agent, "Copilot"),
    (".qwen", Agent, "Qwen Code"),
    (".kiro", Agent, "Kiro"),
    (".amazonq", Agent, "Amazon Q"),
    (".factory", Agent, "Factory"),
    (".junie", Agent, "Junie"),
    (".trae", Agent, "Trae"),
    (".roo", Agent, "Roo Code"),
    (".opencode", Agent, "opencode"),
    ("opencode.json", Agent, "opencode"),
    ("opencode.jsonc", Agent, "opencode"),
    (".crush.json", Agent, "Crush"),
    ("crush.json", Agent, "Crush"),
    (".vscode", Judged, "Visual Studio Code"),
    (".idea", Runs, "IDEs of JetBrains"),
    (".zed", Runs, "Zed"),
    (".helix", Runs, "Helix"),
    (".fleet", Runs, "Fleet"),
    (".devcontainer", Runs, "development containers"),
    (".devcontainer.json", Runs, "development containers"),
    (".bashrc", Runs, "bash"),
    (".bash_profile", Runs, "bash"),
    (".bash_login", Runs, "bash"),
    (".bash_logout", Runs, "bash"),
    (".bash_aliases", Runs, "bash"),
    (".profile", Runs, "shells"),
    (".zshrc", Runs, "zsh"),
    (".zshenv", Runs, "zsh"),
    (".zprofile", Runs, "zsh"),
    (".zlogin", Runs, "zsh"),
    (".zlogout", Runs, "zsh"),
    (".kshrc", Runs, "ksh"),
    (".cshrc", Runs, "csh"),
    (".tcshrc", Runs, "tcsh"),
    (".login", Runs, "csh"),
    (".logout", Runs, "csh"),
    (".inputrc", Runs, "readline"),
    (".envrc", Runs, "direnv"),
    (".direnv", Runs, "direnv"),
    (".config/fish", Runs, "fish"),
    (".config/autostart", Runs, "desktops"),
    (".config/systemd", Runs, "systemd"),
    (".config/git", Runs, "git"),
    (".gitconfig", Runs, "git"),
    (".ssh", Runs, "OpenSSH"),
    (".aws", Runs, "AWS tools"),
    (".gnupg", Runs, "GnuPG"),
    (".netrc", Runs, "curl and git"),
    (".npmrc", Judged, "npm"),
    (".yarnrc", Runs, "Yarn"),
    (".yarnrc.yml", Judged, "Yarn"),
    (".pypirc", Runs, "twine"),
    (".cargo/config", Judged, "cargo"),
    (".cargo/config.toml", Judged, "cargo"),
    ("rust-toolchain", Judged, "rustup"),
    ("rust-toolchain.toml", Judged, "rustup"),
    (".tool-versions", Judged, "asdf and mise"),
    (".mise.toml", Runs, "mise"),
    (".mise/config.toml", Runs, "mise"),
    ("mise.toml", Runs, "mise"),
    ("mise.local.toml", Runs, "mise"),
    (".mise.local.toml", Runs, "mise"),
    (".config/mise", Runs, "mise"),
    ("mise/config.toml", Runs, "mise"),
    (".mise/conf.d", Runs, "mise"),
    (".config/mise.toml", Runs, "mise"),
    (".mvn/jvm.config", Runs, "Maven"),
    (".mvn/extensions.xml", Runs, "Maven"),
    (".Rprofile", Runs, "R"),
    (".Renviron", Runs, "R"),
    (".ghci", Runs, "GHCi"),
    (".iex.exs", Runs, "Elixir"),
    (".irbrc", Runs, "irb"),
    (".octaverc", Runs, "Octave"),
    (".pdbrc", Runs, "pdb"),
    (".pryrc", Runs, "pry"),
    (".pre-commit-config.yaml", Runs, "pre-commit"),
    (".vimrc", Runs, "vim"),
    (".exrc", Runs, "vim"),
    (".nvimrc", Runs, "Neovim"),
    (".nvim.lua", Runs, "Neovim"),
    (".emacs", Runs, "Emacs"),
    (".dir-locals.el", Runs, "Emacs"),
    (".dir-locals-2.el", Runs, "Emacs"),
    (".gdbinit", Runs, "gdb"),
    (".ripgreprc", Runs, "ripgrep"),
    (".pam_environment", Runs, "PAM"),
    (".xprofile", Runs, "X"),
    (".xinitrc", Runs, "X"),
    (".xsession", Runs, "X"),
];

const NAMES: [&str; PROTECTED_NAMES.len()] = {
    let mut names = [""; PROTECTED_NAMES.len()];
    let mut at = 0;
    while at < names.len() {
        names[at] = PROTECTED_NAMES[at].0;
        at += 1;
    }
    names
};

/// The protected names without class and program.
pub const DEFAULT_PROTECTED_NAMES: &[&str] = &NAMES;

/// Returns the names whose content is judged.
pub fn judged_names() -> impl Iterator<Item = &'static str> {
    PROTECTED_NAMES.iter().filter(|(_, class, _)| *class == Judged).map(|(name, _, _)| *name)
}
