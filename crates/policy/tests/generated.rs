//! The committed schemas and `docs/configuration.md` are made from the types.
//! `STOCKADE_BLESS=1` writes them anew; without it, stale files fail.

#![allow(clippy::unwrap_used, reason = "what cannot be had fails the test")]

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};
use stockade_model::{ApprovalMode, Event, NameClass, PROJECT_FILES, PROTECTED_NAMES, RunOutcome, SandboxRecord};
use stockade_policy::examples::ExampleFile;
use stockade_policy::table::{self, TableSituation};
use stockade_policy::{ConfigFile, ConfigLayer, LayerText, OwnDirectories, PolicySettings};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

#[track_caller]
fn check(path: &str, expected: &str) {
    let file = root().join(path);
    if std::env::var_os("STOCKADE_BLESS").is_some() {
        fs::write(&file, expected).unwrap();
    }
    let found = fs::read_to_string(&file).unwrap_or_default();
    assert!(
        found == expected,
        "{path} is stale: run `STOCKADE_BLESS=1 cargo test -p stockade-policy --test generated`"
    );
}

fn schema_of<T: schemars::JsonSchema>(name: &str, title: &str) -> Value {
    let mut schema = serde_json::to_value(schemars::schema_for!(T)).unwrap();
    schema["title"] = json!(title);
    schema["$id"] = json!(format!("schemas/{name}"));
    schema
}

fn pretty(schema: &Value) -> String {
    serde_json::to_string_pretty(schema).unwrap() + "\n"
}

#[test]
fn config_schema_is_fresh() {
    check(
        "schemas/config.schema.json",
        &pretty(&schema_of::<ConfigFile>("config.schema.json", "Stockade configuration")),
    );
}

#[test]
fn outcome_schema_is_fresh() {
    check("schemas/outcome.schema.json", &pretty(&schema_of::<RunOutcome>("outcome.schema.json", "Stockade outcome")));
}

#[test]
fn event_schema_is_fresh() {
    check("schemas/event.schema.json", &pretty(&schema_of::<Event>("event.schema.json", "Stockade event")));
}

#[test]
fn sandbox_schema_is_fresh() {
    check(
        "schemas/sandbox.schema.json",
        &pretty(&schema_of::<SandboxRecord>("sandbox.schema.json", "Stockade sandbox")),
    );
}

#[test]
fn example_schema_is_fresh() {
    let schema = schema_of::<ExampleFile>("policy-test.schema.json", "Stockade policy examples");
    check("schemas/policy-test.schema.json", &pretty(&schema));
}

/// Each shipped policy's decision table is committed, and complete: a line for
/// every situation, a column for every mode.
#[test]
fn decision_tables_are_fresh_and_complete() {
    let settings = PolicySettings::from_layers(Path::new("/home/u"), OwnDirectories::default(), &[]).unwrap();
    let profiles: Vec<&str> = settings.profiles().map(|(name, _)| name).collect();
    assert_eq!(profiles, ["host", "read-only", "strict", "workspace"], "a shipped policy without a table");
    for profile in profiles {
        let text = table::format_table(&settings, profile);
        check(&format!("policies/tables/{profile}.txt"), &text);
        let rows: Vec<&str> = text.lines().skip(3).collect();
        assert_eq!(rows.len(), table::SITUATIONS.len());
        for (row, (name, _)) in rows.iter().zip(table::SITUATIONS) {
            let cells = row.strip_prefix(*name).unwrap().split_whitespace();
            let known = ["allow", "ask", "deny"];
            assert_eq!(cells.filter(|cell| known.contains(cell)).count(), table::table_modes().len(), "{row}");
        }
    }
    // Every kind of situation and every mode has its place.
    let kinds: std::collections::BTreeSet<u8> = table::SITUATIONS
        .iter()
        .map(|(_, situation)| match situation {
            TableSituation::Command(_) => 0,
            TableSituation::Requests(_) => 1,
            TableSituation::Refused(_) => 2,
            TableSituation::File(..) => 3,
            TableSituation::Connection => 4,
            TableSituation::Call => 5,
            TableSituation::Effect(_) => 6,
        })
        .collect();
    assert_eq!(kinds.len(), 7);
    let modes: std::collections::BTreeSet<u8> = table::table_modes()
        .iter()
        .map(|(_, mode)| match mode {
            ApprovalMode::Untrusted => 0,
            ApprovalMode::OnFailure => 1,
            ApprovalMode::OnRequest => 2,
            ApprovalMode::Never => 3,
            ApprovalMode::Granular(_) => 4,
        })
        .collect();
    assert_eq!(modes.len(), 5);
}

/// What the reference and the guide to the reviewer show as examples is a
/// configuration.
#[test]
fn examples_of_the_reference_hold() {
    let text = fs::read_to_string(root().join("docs/configuration.md")).unwrap();
    assert!(examples_hold(&text) >= 2);
    let text = fs::read_to_string(root().join("docs/reviewer.md")).unwrap();
    assert_eq!(examples_hold(&text), 2);
}

/// How many configurations a text shows; each can be used.
fn examples_hold(text: &str) -> usize {
    let blocks: Vec<&str> = text.split("```toml\n").skip(1).map(|rest| rest.split("```").next().unwrap()).collect();
    for block in &blocks {
        let layer = LayerText { layer: ConfigLayer::User, path: "docs".into(), source: (*block).to_owned() };
        PolicySettings::from_layers(Path::new("/home/u"), OwnDirectories::default(), &[layer]).unwrap();
    }
    blocks.len()
}

/// Each type of event has its line in the guide to events.
#[test]
fn events_guide_is_complete() {
    let text = fs::read_to_string(root().join("docs/events.md")).unwrap();
    let schema = schema_of::<Event>("event.schema.json", "");
    let kinds = schema["$defs"]["EventKind"]["oneOf"].as_array().unwrap();
    let name = |kind: &Value| kind["properties"]["type"]["const"].as_str().unwrap().to_owned();
    assert!(kinds.len() > 15);
    let missing: Vec<String> =
        kinds.iter().map(name).filter(|name| !text.contains(&format!("\n| `{name}` |"))).collect();
    assert_eq!(missing, [""; 0]);
}

/// The guide to the network shows each group, and its examples hold.
#[test]
fn network_guide_is_fresh() {
    let text = fs::read_to_string(root().join("docs/network.md")).unwrap();
    let table = text.split_once("| Group | Holds |\n|---|---|\n").map(|(before, _)| before).unwrap();
    let row = |group: &stockade_policy::HostGroup| format!("| `@{}` | {} |\n", group.name, group.summary);
    let rows: String = stockade_policy::host_groups().iter().map(row).collect();
    check("docs/network.md", &format!("{table}| Group | Holds |\n|---|---|\n{rows}"));
    assert_eq!(examples_hold(&text), 5);
}

#[test]
fn configuration_reference_is_fresh() {
    check("docs/configuration.md", &reference());
}

/// The reference: an introduction, every key, the built-in profiles.
fn reference() -> String {
    let schema = schema_of::<ConfigFile>("config.schema.json", "");
    let mut text = INTRODUCTION.to_owned();
    text.push_str("## Keys\n\n");
    let mut keys = Keys { schema: &schema, rows: Vec::new() };
    keys.object(&schema, "");
    for row in keys.rows {
        text.push_str(&row);
    }
    text.push_str("\n## Built-in profiles\n\n| Profile | Powers |\n|---|---|\n");
    let settings = PolicySettings::from_layers(Path::new("~"), OwnDirectories::default(), &[]).unwrap();
    for (name, summary) in settings.profiles() {
        let _ = writeln!(text, "| `{name}` | {summary} |");
    }
    text.push_str(PROFILES);
    text.push_str("\n### Protected names\n");
    text.push_str(&protected());
    for (key, title) in [("hide", "### Hidden paths"), ("env.pass", "### Variables that pass")] {
        let _ = write!(text, "\n{title}\n\n| Names | Reason |\n|---|---|\n");
        text.push_str(&listed(&settings, key));
    }
    text
}

/// Protected names and files that run code later, by what is done about them.
fn protected() -> String {
    let of = |class: NameClass| {
        let all = PROTECTED_NAMES.iter().filter(move |(_, own, _)| *own == class);
        all.map(|(name, _, tool)| (*name, *tool)).collect::<Vec<_>>()
    };
    let parts = [
        ("Written only with a grant: settings of Stockade, of other sandboxes and of agents.", of(NameClass::Agent)),
        (
            "Written only with a grant: files that run code by themselves, and that a review of changes does not show.",
            of(NameClass::Runs),
        ),
        ("The same, but content that runs no code is written without a question.", of(NameClass::Checked)),
        (
            "Written freely, and reported; in profile `strict` only with a grant: files that run code when a person \
             builds, tests or installs the project.",
            PROJECT_FILES.to_vec(),
        ),
    ];
    let mut text = String::new();
    for (what, names) in parts {
        let _ = write!(text, "\n{what}\n\n| Read by | Names |\n|---|---|\n");
        let mut tools: Vec<(&str, Vec<String>)> = Vec::new();
        for (name, tool) in names {
            match tools.iter_mut().find(|(known, _)| *known == tool) {
                Some((_, names)) => names.push(format!("`{name}`")),
                None => tools.push((tool, vec![format!("`{name}`")])),
            }
        }
        for (tool, names) in tools {
            let _ = writeln!(text, "| {tool} | {} |", names.join(" "));
        }
    }
    text
}

/// Entries of one list of profile `workspace`, those with one reason together.
fn listed(settings: &PolicySettings, key: &str) -> String {
    let mut groups: Vec<(&str, Vec<String>)> = Vec::new();
    for line in settings.explain_profile("workspace") {
        let stockade_policy::ValueOrigin::Shipped { reason, .. } = line.origin else { continue };
        if line.key != format!("profiles.workspace.{key}") {
            continue;
        }
        match groups.iter_mut().find(|(why, _)| *why == reason) {
            Some((_, values)) => values.push(format!("`{}`", line.value)),
            None => groups.push((reason, vec![format!("`{}`", line.value)])),
        }
    }
    groups.iter().map(|(reason, values)| format!("| {} | {reason} |\n", values.join(" "))).collect()
}

struct Keys<'a> {
    schema: &'a Value,
    rows: Vec<String>,
}

impl<'a> Keys<'a> {
    fn object(&mut self, object: &'a Value, prefix: &str) {
        for (name, property) in object["properties"].as_object().into_iter().flatten() {
            let path = if prefix.is_empty() { name.clone() } else { format!("{prefix}.{name}") };
            let target = self.target(property);
            let description = property["description"].as_str().or(target["description"].as_str()).unwrap_or_default();
            let description = description.replace('\n', " ");
            self.rows.push(format!("- **`{path}`** ({}): {description}\n", self.kind(property)));
            if target["properties"].is_object() {
                self.object(target, &path);
            } else if property["additionalProperties"].is_object() {
                let inner = self.target(&property["additionalProperties"]);
                self.object(inner, &format!("{path}.NAME"));
            } else if property["type"] == "array" {
                let inner = self.target(&property["items"]);
                self.object(inner, &format!("{path}[]"));
            }
            let of_items = self.target(&target["items"]);
            for choice in self.choices(target).into_iter().chain(self.choices(of_items)) {
                self.rows.push(choice);
            }
        }
    }

    /// The schema behind a reference, or behind "this or null".
    fn target(&self, property: &'a Value) -> &'a Value {
        if let Some(reference) = property["$ref"].as_str() {
            return self.schema.pointer(reference.trim_start_matches('#')).unwrap();
        }
        if let Some(first) = property["anyOf"].as_array().and_then(|options| options.first()) {
            return self.target(first);
        }
        property
    }

    fn kind(&self, property: &'a Value) -> String {
        let target = self.target(property);
        if target["oneOf"].is_array() || target["enum"].is_array() {
            return "one of".to_owned();
        }
        let named = match &target["type"] {
            Value::String(name) => name.as_str(),
            Value::Array(names) => names.iter().filter_map(Value::as_str).find(|name| *name != "null").unwrap_or("any"),
            _ => "any",
        };
        match named {
            "array" => match self.kind(&target["items"]).as_str() {
                "one of" => "list of any of".to_owned(),
                "any" => "list of words, each a string or a list of strings".to_owned(),
                kind => format!("list of {kind}s"),
            },
            "object" => "table".to_owned(),
            "boolean" => "true or false".to_owned(),
            other => other.to_owned(),
        }
    }

    fn choices(&self, target: &Value) -> Vec<String> {
        let empty = Vec::new();
        let options = target["oneOf"].as_array().unwrap_or(&empty);
        options
            .iter()
            .filter_map(|option| {
                let name = option["const"].as_str()?;
                let description = option["description"].as_str().unwrap_or_default().replace('\n', " ");
                Some(format!("  - `{name}`: {description}\n"))
            })
            .collect()
    }
}

const INTRODUCTION: &str = r#"# Configuration

<!-- Generated from the types in crates/policy and the data in policies/.
     `STOCKADE_BLESS=1 cargo test -p stockade-policy --test generated` writes it anew. -->

Stockade reads TOML from these files, each optional:

| Layer | File | May |
|---|---|---|
| managed | `/etc/stockade/managed.toml` | anything; no other layer overrides it |
| system | `/etc/stockade/config.toml` | anything |
| user | `$XDG_CONFIG_HOME/stockade/config.toml`, by default `~/.config/stockade/config.toml` | anything |
| project | `.stockade.toml` or `.stockade/config.toml` in the workspace | only tighten |
| session | given by the creator of a session | only tighten |

Later layers outweigh earlier ones, but the managed layer also counts at the end: its hidden paths,
protected names, dropped variables, limits and stricter values stay in force. Without any file the
built-in policy is in force; `stockade policy check` and the first run at a terminal report this.

A project's file may hide, protect and drop more, lower limits, and add `ask` and `deny` rules. It may
choose a stricter mode, level, sandbox preference or profile. Anything that would give more is an
error, which names its position in the file.

The project's file must be a regular file of at most 256 KiB, not a symbolic link. Its owner does not
matter. The user's file must belong to the user or to root, those in `/etc` to root. No other user may
be able to write one of them, or a directory or link on the path to it.

If a file cannot be used, every run is refused: Stockade does not continue without it. Unknown keys
are errors, with a suggestion:

```
error: /home/u/.config/stockade/config.toml:3:1: unknown key `profil`
hint: did you mean `profile`?
```

An example:

```toml
approval_mode = "on-request"
approval_timeout = "2m"

[profiles.workspace]
write = ["~/.cache/pip"]
env.pass = ["MY_BUILD_FLAVOUR"]

[profiles.web]
extends = "workspace"
hide = ["./secrets"]
limits.wall = "30m"

[[rules]]
prefix = ["git", "push"]
effect = "deny"
justification = "releases are made by people"
match = ["git push --force origin"]
not_match = ["git pull", "echo 'git push'"]
```

Paths are absolute or start with `~/` (home) or `./` (workspace). A directory includes everything
beneath it. If both `hide` and `reveal` apply to a path, the nearest entry above the path decides.
Patterns and variables are not supported in paths.

## Rules

A rule is about one kind of request:

- commands (`prefix`, `glob`, `options`, `facts`),
- tool calls (`tool`, `arguments`),
- files that a patch or a tool changes (`files`, `operations`),
- or connections (`hosts`).

`cwd`, `user`, `session`, `tool` and `time` narrow it. All conditions of a rule must hold.

```toml
[[rules]]
name = "no-force-push"
prefix = ["git", "push"]
options.present = [["-f", "--force", "--force-with-lease"]]
effect = "deny"
justification = "history is shared"
match = ["git push -f", "git push origin main --force"]
not_match = ["git push"]

[[rules]]
prefix = ["npm", ["ci", "install"]]
effect = "allow"
grants = ["connect registry.npmjs.org:443"]
limits.wall = "10m"
justification = "dependencies come from the registry"

[[rules]]
facts.writes = ["outside-workspace"]
effect = "ask"
approver = "person"
justification = "changes outside the workspace are reviewed"

[[rules]]
tool = ["mcp__github__*"]
arguments.repo = ["acme/*"]
effect = "allow"
justification = "our own repositories"

[[rules]]
files = ["./migrations/**"]
effect = "ask"
justification = "migrations are reviewed"

[[rules]]
hosts = ["*.internal.example:443"]
time = ["mon-fri 08:00-18:00 +01:00"]
effect = "ask"
justification = "an operator is on duty"
```

`prefix` is compared word by word with the program and its first arguments.

- **`ask` and `deny` rules** apply to every program of that name. They also apply inside scripts and
  wrappers such as `sudo`. If the text is not plain, or a fact that the rule needs is unknown, a `deny`
  rule asks instead, and only a person can answer.
- **An `allow` rule** applies to exactly that program, and only if every condition is certain. It
  prevents the question only if every command of a plain script is allowed. The run may connect to the
  `hosts` of the rule, and send them the secrets that its `grants` name. It may change the `files` of
  the rule, unless they are protected or hidden.

No rule ever removes the sandbox.

The `combining` algorithm of a file combines its rules to one answer. The files are always combined by
`deny-overrides`: deny outweighs ask, ask outweighs allow. `profile`, `grants` and `limits` of a rule
take effect if the rule applies and the command runs: of several profiles the narrowest, of several
limits the lowest. If a profile was requested by name, rules can only narrow it.

`stockade policy explain` shows the result of every rule for a command, `stockade policy test` runs
files of examples, and `stockade policy import` converts the rules of other tools.

"#;

const PROFILES: &str = "
`host` is used only if system or user configuration sets `allow_host = true`, and a person
agrees to each command.

Names such as `.git/hooks`, `.git/config`, shell start-up files and agents' settings are
protected in every writable directory, whether or not they exist. No run can reach Stockade's own
configuration and state, or a link on the path to them.
";
