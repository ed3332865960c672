//! Random rules of other tools and random acts near them. The same number gives
//! the same files.

use stockade_policy::{FileOperation, ImportSource, ImportTool, SourceScope};

use super::probes::Probe;

/// A generator of numbers: splitmix64.
pub struct Random(u64);

impl Random {
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    pub fn below(&mut self, end: usize) -> usize {
        usize::try_from(self.next() % end as u64).unwrap()
    }

    fn one<'a>(&mut self, from: &[&'a str]) -> &'a str {
        from[self.below(from.len())]
    }

    fn words(&mut self, most: usize) -> Vec<&'static str> {
        let mut words = vec![self.one(PROGRAMS)];
        (0..self.below(most)).for_each(|_| words.push(self.one(WORDS)));
        words
    }
}

const PROGRAMS: &[&str] = &["frob", "git", "cat", "rm", "npm", "grob", "ls", "sudo", "env", "echo", "find", "touch"];
const WORDS: &[&str] = &[
    "push",
    "status",
    "-f",
    "--force",
    "x",
    "y",
    "main",
    "-rf",
    "src/a.rs",
    "/etc/hostname",
    "../other/x",
    "run",
    "test",
];
const JOINS: &[&str] = &[" && ", " || ", "; ", " | ", " & ", "\n"];
const ENDS: &[&str] = &["", "", "", "", " > out", " &", " 'a b'", " \"$X\"", " `id`", " <in", " #x"];
const FRONTS: &[&str] = &["", "", "", "", "", "A=b ", "timeout 5 ", "/usr/bin/", "./", "bash -c "];
const TOOLS: &[&str] = &["read_file", "write_file", "replace", "grep_search", "mcp_jira_search", "mcp_bad_x", "other"];
const PATHS: &[&str] = &["src/new", "new", ".git/config", "other/new", ".bashrc", "src/a/b"];

/// An act.
pub fn probe(tool: ImportTool, random: &mut Random) -> Probe {
    match (tool, random.below(8)) {
        (ImportTool::Gemini, 0 | 1) => {
            let name = random.one(TOOLS).to_owned();
            let key = random.one(&["file_path", "path", "command", "other"]);
            let value = random.one(&["src/a", "src/ab", "Makefile", "x", "a/src/a", "sub/go.mod"]);
            Probe::Tool(name.into(), format!("{{\"{key}\": \"{value}\"}}").into())
        }
        (ImportTool::Claude, 0) => {
            let root = random.one(&["/home/u/work", "/home/u"]);
            Probe::File(FileOperation::Create, format!("{root}/{}", random.one(PATHS)).into())
        }
        _ => Probe::Command(command(random).into()),
    }
}

fn command(random: &mut Random) -> String {
    let mut text = String::new();
    for i in 0..=random.below(3) {
        if i > 0 {
            text.push_str(random.one(JOINS));
        }
        let words = random.words(4).join(" ");
        match random.one(FRONTS) {
            front @ "bash -c " => text.push_str(&format!("{front}'{words}'")),
            front => text.push_str(&format!("{front}{words}")),
        }
        text.push_str(random.one(ENDS));
    }
    text
}

/// The files of a tool.
pub fn sources(tool: ImportTool, random: &mut Random) -> Vec<ImportSource> {
    let file = |name: &str, text: String, scope| ImportSource { name: name.to_owned(), text, scope };
    match tool {
        ImportTool::Codex => {
            (0..=random.below(2)).map(|i| file(&format!("{i}.rules"), codex(random), SourceScope::User)).collect()
        }
        ImportTool::Claude => {
            vec![
                file("user.json", claude(random), SourceScope::User),
                file("project.json", claude(random), SourceScope::Project),
            ]
        }
        ImportTool::Gemini => {
            vec![
                file("user.toml", gemini(random), SourceScope::User),
                file("admin.toml", gemini(random), SourceScope::Admin),
            ]
        }
    }
}

fn codex(random: &mut Random) -> String {
    let mut text = String::new();
    for _ in 0..=random.below(5) {
        let words: Vec<String> = random.words(3).iter().map(|word| format!("\"{word}\"")).collect();
        let mut pattern = words.join(", ");
        if random.below(3) == 0 {
            pattern.push_str(&format!(", [\"{}\", \"{}\"]", random.one(WORDS), random.one(WORDS)));
        }
        let decision = random.one(&["allow", "allow", "prompt", "forbidden"]);
        text.push_str(&format!("prefix_rule(pattern=[{pattern}], decision=\"{decision}\")\n"));
    }
    if random.below(3) == 0 {
        text.push_str("host_executable(name=\"git\", paths=[\"/usr/bin/git\"])\n");
    }
    text
}

fn claude(random: &mut Random) -> String {
    let mut lists = [Vec::new(), Vec::new(), Vec::new()];
    for _ in 0..=random.below(6) {
        let rule = match random.below(10) {
            0 => random.one(&["Edit", "Write", "Read", "BashOutput", "Grep", "*", "B*"]).to_owned(),
            1 => format!(
                "Edit({}{})",
                random.one(&["", "/", "~/", "./", "**/"]),
                random.one(&["src/**", "*", "**", "new"])
            ),
            2 => format!("Write({})", random.one(&["src/**", "~/**", "**"])),
            3 => format!("Bash({})", random.words(4).join(" ")),
            4 => format!("Bash({}*)", random.words(2).join(" ")),
            5 => format!("Bash(* {})", random.one(WORDS)),
            6 => format!("Bash({} * {})", random.one(PROGRAMS), random.one(WORDS)),
            7 => random.one(&["Bash", "Bash(*)", "Bash(**)", "Bash(:*)", "Bash(a | b)"]).to_owned(),
            _ => format!("Bash({}:*)", random.words(2).join(" ")),
        };
        // A bare `Bash` in `deny` takes the tool away, and every answer with it.
        let list = random.below(4).saturating_sub(1);
        let list = if rule == "Bash" || rule.contains("Bash(*)") { 0 } else { list };
        lists[list].push(rule);
    }
    let [allow, ask, deny] = lists;
    serde_json::json!({"permissions": {"allow": allow, "ask": ask, "deny": deny}}).to_string()
}

fn gemini(random: &mut Random) -> String {
    let mut text = String::new();
    for _ in 0..=random.below(6) {
        let decision = random.one(&["allow", "allow", "allow", "ask_user", "deny"]);
        let what = match random.below(8) {
            0 => format!("toolName = \"{}\"", random.one(TOOLS)),
            1 => format!(
                "toolName = \"{}\"",
                random.one(&["*", "run_shell_command", "ShellTool", "mcp_*", "mcp_jira_*", "read_*"])
            ),
            2 => format!(
                "mcpName = \"{}\"\ntoolName = \"{}\"",
                random.one(&["jira", "bad", "*"]),
                random.one(&["*", "search", "x"])
            ),
            3 => format!(
                "toolName = \"{}\"\nargsPattern = '{}'",
                random.one(TOOLS),
                random.one(&["\"file_path\":\"src/a", "src", "\"path\":\"x\"", "\"path\":\"a|Make"])
            ),
            4 => format!(
                "toolName = \"run_shell_command\"\ncommandRegex = '{}'",
                random.one(&[
                    "git (push|status)",
                    "frob.*--force",
                    "rm|sudo",
                    ".*main",
                    "cat [a-z]",
                    "frob x\"",
                    "^git",
                    "npm (run )?test",
                    "git$",
                    "(a?b) (c)?",
                    "frob x; git",
                ])
            ),
            _ => format!("toolName = \"run_shell_command\"\ncommandPrefix = \"{}\"", random.words(3).join(" ")),
        };
        text.push_str(&format!("[[rule]]\n{what}\ndecision = \"{decision}\"\npriority = {}\n\n", random.below(1000)));
    }
    text
}
