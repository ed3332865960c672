//! Files as a whole: every mistake of them is told at once.

use stockade_policy::{Scope, Source, Tool, import};

fn lines_of(tool: Tool, files: &[(&str, &str)]) -> Vec<String> {
    let source =
        |(name, text): &(&str, &str)| Source { name: (*name).to_owned(), text: (*text).to_owned(), scope: Scope::User };
    let sources: Vec<Source> = files.iter().map(source).collect();
    match import(tool, &sources) {
        Ok(imported) => panic!("{files:?}: imported {} rules", imported.rules.len()),
        Err(error) => error.to_string().lines().map(str::to_owned).collect(),
    }
}

#[track_caller]
fn check_lines(tool: Tool, files: &[(&str, &str)], starts: &[&str]) {
    let lines = lines_of(tool, files);
    assert_eq!(lines.len(), starts.len(), "{lines:#?}");
    for (line, start) in lines.iter().zip(starts) {
        assert!(line.starts_with(start), "{line:?} does not start with {start:?}\n{lines:#?}");
    }
}

#[test]
fn every_mistake_is_told_at_once() {
    let claude = "{\n\"permissions\": {\n\"allow\": [\"Bash(\", \"Read\", 3],\n\"alow\": [],\n\"deny\": \"x\",\n\"defaultMode\": \"yolo\"\n},\n\"sandbox\": {\"excludedCommands\": [1, \"a\", 2], \"network\": {\"allowedDomains\": 1}}\n}\n";
    check_lines(
        Tool::Claude,
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
        Tool::Claude,
        &[("f", "{\"sandbox\": {\"filesystem\": [],\n\"network\": 1}}")],
        &["f:1:28: expected an object", "f:2:12: expected an object", "hint: "],
    );
    let rule = |priority: &str| format!("[[rule]]\ntoolName = \"x\"\ndecision = \"deny\"\npriority = {priority}\n");
    check_lines(
        Tool::Gemini,
        &[
            ("f", &format!("{}{}{}", rule("1000"), rule("1"), rule("-1"))),
            ("s", "{\"tools\": {\"exclude\": [1, \"a\", 2], \"core\": \"x\"}, \"mcpServers\": []}"),
        ],
        &["f:4:1: a priority", "f:12:1: a priority", "s:1:24: ", "s:1:32: ", "s:1:44: ", "s:1:64: ", "hint: "],
    );
    check_lines(
        Tool::Codex,
        &[("f", "prefix_rule(pattern = [])\nprefix_rule(pattern = [\"a\"])\nallow_rule()\n"), ("g", "x(")],
        &["f:1:23: a pattern", "f:3:1: there is no function", "g:1:3: ", "hint: "],
    );
}

#[test]
fn what_is_told_of_mistakes_is_bounded() {
    let entries = vec!["\"Bash(\""; 50].join(",\n");
    let lines = lines_of(Tool::Claude, &[("f", &format!("{{\"permissions\": {{\"allow\": [\n{entries}]}}}}"))]);
    assert_eq!(lines.len(), 22, "{lines:#?}");
    assert!(lines[19].starts_with("f:21:1: `Bash(`"), "{lines:#?}");
    assert_eq!(lines[20], "and 30 more mistakes");
}
