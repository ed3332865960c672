//! Files as a whole: whose they are, what else they hold, and every mistake of
//! them at once.

use std::collections::BTreeSet;

use stockade_policy::{ImportDeviation, ImportSource, ImportTool, SourceScope, import_policy};

use super::ours::source;

const CLAUDE: &str =
    "{\n  \"permissions\": {\"deny\": [\"Bash(rm *)\"]},\n  \"model\": \"opus\",\n  \"hooks\": {}\n}\n";
const GEMINI_SETTINGS: &str = "{ \"tools\": { \"exclude\": [\"web_fetch\"] }, \"model\": { \"name\": \"x\" } }";
const GEMINI_POLICY: &str = "[[rule]]\ntoolName = \"x\"\ndecision = \"deny\"\npriority = 1\n";
const CODEX: &str = "prefix_rule(pattern = [\"rm\"], decision = \"forbidden\")\n";

fn refusal(tool: ImportTool, text: &str) -> String {
    match import_policy(tool, &[source(tool, "f", text)]) {
        Ok(imported) => panic!("{tool:?} {text:?}: {} rules, {:?}", imported.rules.len(), imported.notes),
        Err(error) => error.to_string(),
    }
}

/// A file of another tool is told by its keys, and the hint names the tool.
#[test]
fn a_file_of_another_tool_is_refused() {
    let files = [
        (CLAUDE, ImportTool::Claude, "claude"),
        (GEMINI_SETTINGS, ImportTool::Gemini, "gemini"),
        (GEMINI_POLICY, ImportTool::Gemini, "gemini"),
        (CODEX, ImportTool::Codex, "codex"),
        ("{\"permissions\": {}}", ImportTool::Claude, "claude"),
        ("{\"env\": {\"A\": \"b\"}}", ImportTool::Claude, "claude"),
        ("{\"mcpServers\": {}}", ImportTool::Gemini, "gemini"),
    ];
    for (text, own, name) in files {
        assert!(import_policy(own, &[source(own, "f", text)]).is_ok(), "{text:?}");
        for other in [ImportTool::Claude, ImportTool::Gemini, ImportTool::Codex].into_iter().filter(|tool| *tool != own)
        {
            let refusal = refusal(other, text);
            assert!(refusal.starts_with("f:1:") || refusal.starts_with("f:2:"), "{other:?} {text:?}: {refusal}");
            let hint = refusal.lines().find(|line| line.starts_with("hint: ")).unwrap_or_default();
            assert!(hint.contains(&format!("--from {name}")), "{other:?} {text:?}: {refusal}");
        }
    }
}

#[test]
fn a_file_without_a_key_of_the_tool_is_refused() {
    for (tool, text, expected) in [
        (ImportTool::Claude, "{}", "f:1:1: it is empty"),
        (ImportTool::Gemini, " {}", "f:1:2: it is empty"),
        (ImportTool::Gemini, "", "f:1:1: it contains no `[[rule]]` and no `[[safety_checker]]`"),
        (ImportTool::Gemini, "# nothing\n", "f:1:1: it contains no `[[rule]]`"),
        (ImportTool::Gemini, "\n[profile]\nx = 1\n", "f:1:1: it contains no `[[rule]]`"),
        (ImportTool::Codex, "# nothing\n", "f:1:1: it contains no rule"),
        (ImportTool::Codex, "", "f:1:1: it contains no rule"),
        (ImportTool::Claude, "{\"rules\": [], \"x\": 1}", "f:1:1: it has no key of Claude Code's"),
        (ImportTool::Gemini, "{\"rules\": [], \"x\": 1}", "f:1:1: it has no key of Gemini CLI's"),
    ] {
        let refusal = refusal(tool, text);
        assert!(refusal.starts_with(expected), "{tool:?} {text:?}: {refusal}");
        let hint = format!("or name the file that holds {}'s rules", title(tool));
        assert!(refusal.ends_with(&hint), "{refusal}");
    }
}

fn title(tool: ImportTool) -> &'static str {
    match tool {
        ImportTool::Claude => "Claude Code",
        ImportTool::Gemini => "Gemini CLI",
        ImportTool::Codex => "Codex",
    }
}

/// Settings that say nothing of permissions are settings all the same.
#[test]
fn settings_without_rules_are_accepted() {
    for (tool, text) in [
        (ImportTool::Claude, "{\"model\": \"opus\"}"),
        (ImportTool::Claude, "{\"$schema\": \"https://x\", \"theme\": \"dark\", \"cleanupPeriodDays\": 3}"),
        (ImportTool::Claude, "{\"hooks\": {}}"),
        (ImportTool::Claude, "{\"statusLine\": {\"type\": \"command\", \"command\": \"x\"}}"),
        (ImportTool::Gemini, "{\"ui\": {\"theme\": \"x\"}, \"general\": {}}"),
        (ImportTool::Gemini, "{\"theme\": \"x\"}"),
        (ImportTool::Gemini, "{\"mcpServers\": {\"a\": {\"command\": \"x\"}}}"),
        (ImportTool::Gemini, "{\"model\": {\"name\": \"x\"}}"),
    ] {
        let imported =
            import_policy(tool, &[source(tool, "f", text)]).unwrap_or_else(|error| panic!("{text}: {error}"));
        assert!(imported.rules.is_empty(), "{text}");
        assert!(
            imported.notes.iter().all(|note| note.carried == ImportDeviation::Needless),
            "{text}: {:?}",
            imported.notes
        );
    }
}

/// What is said of a key at the top of settings.
#[test]
fn keys_beside_the_rules_are_reported_where_they_matter() {
    for (tool, key, value, carried) in [
        (ImportTool::Claude, "env", "{\"A\": \"secret\", \"B\": \"x\"}", Some(ImportDeviation::Left)),
        (ImportTool::Claude, "env", "{}", None),
        (ImportTool::Claude, "model", "\"opus\"", None),
        (ImportTool::Claude, "theme", "\"dark\"", None),
        (ImportTool::Claude, "outputStyle", "\"x\"", None),
        (ImportTool::Claude, "statusLine", "{}", Some(ImportDeviation::Needless)),
        (ImportTool::Claude, "apiKeyHelper", "\"x\"", Some(ImportDeviation::Needless)),
        (ImportTool::Claude, "policyHelper", "\"x\"", Some(ImportDeviation::Weaker)),
        (ImportTool::Claude, "autoMode", "{\"soft_deny\": [\"x\"]}", Some(ImportDeviation::Weaker)),
        (ImportTool::Claude, "hooks", "{\"PreToolUse\": []}", Some(ImportDeviation::Weaker)),
        (ImportTool::Claude, "wibble", "true", Some(ImportDeviation::Weaker)),
        (ImportTool::Claude, "tools", "{\"exclude\": [\"x\"]}", Some(ImportDeviation::Weaker)),
        (ImportTool::Claude, "sandbox", "{\"filesystem\": {\"denyExec\": [\"/x\"]}}", Some(ImportDeviation::Weaker)),
        (
            ImportTool::Claude,
            "sandbox",
            "{\"filesystem\": {\"allowManagedReadPathsOnly\": true}}",
            Some(ImportDeviation::Needless),
        ),
        (ImportTool::Gemini, "ui", "{}", None),
        (ImportTool::Gemini, "wibble", "true", Some(ImportDeviation::Weaker)),
        (ImportTool::Gemini, "policyPaths", "[\"more\"]", Some(ImportDeviation::Weaker)),
        (ImportTool::Gemini, "policyPaths", "[]", None),
    ] {
        let own = if tool == ImportTool::Claude { "permissions" } else { "tools" };
        let text = format!("{{\"{own}\": {{}},\n\"{key}\": {value}}}");
        let imported =
            import_policy(tool, &[source(tool, "f", &text)]).unwrap_or_else(|error| panic!("{text}: {error}"));
        let deviations: BTreeSet<ImportDeviation> = imported.notes.iter().map(|note| note.carried).collect();
        assert_eq!(deviations, carried.into_iter().collect(), "{text}: {:?}", imported.notes);
        assert!(imported.notes.iter().all(|note| note.position.line == 2), "{text}: {:?}", imported.notes);
        assert!(!imported.to_toml().contains("secret"), "values of variables may be secrets");
    }
}

/// Names of Gemini's settings from before they were grouped hold as well.
#[test]
fn old_names_of_lists_of_servers_count() {
    let text = "{\"excludeMCPServers\": [\"bad\"], \"allowMCPServers\": [\"good\"]}";
    let imported = import_policy(ImportTool::Gemini, &[source(ImportTool::Gemini, "f", text)])
        .unwrap_or_else(|error| panic!("{error}"));
    assert!(imported.to_toml().contains("mcp_bad_*"), "{}", imported.to_toml());
    assert!(imported.to_toml().contains("mcp_good_*"), "{}", imported.to_toml());
}

fn lines_of(tool: ImportTool, files: &[(&str, &str)]) -> Vec<String> {
    let source = |(name, text): &(&str, &str)| ImportSource {
        name: (*name).to_owned(),
        text: (*text).to_owned(),
        scope: SourceScope::User,
    };
    let sources: Vec<ImportSource> = files.iter().map(source).collect();
    match import_policy(tool, &sources) {
        Ok(imported) => panic!("{files:?}: imported {} rules", imported.rules.len()),
        Err(error) => error.to_string().lines().map(str::to_owned).collect(),
    }
}

#[track_caller]
fn check_lines(tool: ImportTool, files: &[(&str, &str)], starts: &[&str]) {
    let lines = lines_of(tool, files);
    assert_eq!(lines.len(), starts.len(), "{lines:#?}");
    for (line, start) in lines.iter().zip(starts) {
        assert!(line.starts_with(start), "{line:?} does not start with {start:?}\n{lines:#?}");
    }
}

#[test]
fn all_mistakes_are_reported_at_once() {
    let claude = "{\n\"permissions\": {\n\"allow\": [\"Bash(\", \"Read\", 3],\n\"alow\": [],\n\"deny\": \"x\",\n\"defaultMode\": \"yolo\"\n},\n\"sandbox\": {\"excludedCommands\": [1, \"a\", 2], \"network\": {\"allowedDomains\": 1}}\n}\n";
    check_lines(
        ImportTool::Claude,
        &[("f", claude)],
        &[
            "f:3:11: `Bash(`: the parenthesis",
            "f:3:28: expected a rule, found a number",
            "f:4:1: `permissions` has no `alow`",
            "f:5:9: expected a list, found a string",
            "f:6:16: `yolo`: the modes are",
            "f:8:34: expected a string, found a number",
            "f:8:42: expected a string, found a number",
            "f:8:76: expected a list, found a number",
            "hint: nothing was imported; correct them, or take them out",
        ],
    );
    check_lines(
        ImportTool::Claude,
        &[("f", "{\"sandbox\": {\"filesystem\": [],\n\"network\": 1,\n\"credentials\": {\"files\": 1}},\n\"env\": 1}")],
        &[
            "f:1:28: expected an object",
            "f:2:12: expected an object",
            "f:3:26: expected a list",
            "f:4:8: expected an object",
            "hint: ",
        ],
    );
    let rule = |priority: &str| format!("[[rule]]\ntoolName = \"x\"\ndecision = \"deny\"\npriority = {priority}\n");
    check_lines(
        ImportTool::Gemini,
        &[
            ("f", &format!("{}{}{}", rule("1000"), rule("1"), rule("-1"))),
            ("s", "{\"tools\": {\"exclude\": [1, \"a\", 2], \"core\": \"x\"}, \"mcpServers\": []}"),
        ],
        &["f:4:1: a priority", "f:12:1: a priority", "s:1:24: ", "s:1:32: ", "s:1:44: ", "s:1:64: ", "hint: "],
    );
    check_lines(
        ImportTool::Codex,
        &[("f", "prefix_rule(pattern = [])\nprefix_rule(pattern = [\"a\"])\nallow_rule()\n"), ("g", "x(")],
        &["f:1:23: a pattern", "f:3:1: there is no function", "g:1:3: ", "hint: "],
    );
}

#[test]
fn reports_of_mistakes_are_bounded() {
    let entries = vec!["\"Bash(\""; 50].join(",\n");
    let lines = lines_of(ImportTool::Claude, &[("f", &format!("{{\"permissions\": {{\"allow\": [\n{entries}]}}}}"))]);
    assert_eq!(lines.len(), 22, "{lines:#?}");
    assert!(lines[19].starts_with("f:21:1: `Bash(`"), "{lines:#?}");
    assert_eq!(lines[20], "and 30 more mistakes");
}
