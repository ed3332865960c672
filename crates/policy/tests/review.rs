//! `[review]` and `[notify]`: who may configure them, what they mean, what they must not.

#![allow(clippy::unwrap_used, reason = "what cannot be had fails the test")]

use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};

use stockade_policy::load::{ConfigSources, load_settings};
use stockade_policy::{
    ConfigError, ConfigLayer, LayerText, OwnDirectories, PolicySettings, ReviewApi, ReviewKey, resolve_profile,
};

const GOOD: &str =
    "[review]\napi = \"anthropic\"\nendpoint = \"https://api.example.com/v1/messages\"\nmodel = \"m-1\"\n";

fn merge(layers: &[(ConfigLayer, &str)]) -> Result<PolicySettings, ConfigError> {
    let text = |(layer, source): &(ConfigLayer, &str)| LayerText {
        layer: *layer,
        path: format!("/{layer}").into(),
        source: (*source).to_owned(),
    };
    let layers: Vec<_> = layers.iter().map(text).collect();
    PolicySettings::from_layers(Path::new("/home/u"), OwnDirectories::default(), &layers)
}

#[test]
fn no_model_is_asked_unless_configured() {
    assert_eq!(merge(&[]).unwrap().review.value, None);
    assert_eq!(merge(&[(ConfigLayer::User, "level = \"full\"")]).unwrap().review.value, None);
    let off = "[review]\nenabled = false";
    assert_eq!(merge(&[(ConfigLayer::System, GOOD), (ConfigLayer::User, off)]).unwrap().review.value, None);
    assert!(merge(&[(ConfigLayer::System, off), (ConfigLayer::User, GOOD)]).unwrap().review.value.is_some());
}

#[test]
fn the_values_and_their_defaults() {
    let review = merge(&[(ConfigLayer::User, GOOD)]).unwrap().review.value.unwrap();
    assert_eq!((review.api, review.model.as_str()), (ReviewApi::Anthropic, "m-1"));
    assert_eq!(review.endpoint.to_string(), "https://api.example.com/v1/messages");
    assert_eq!((review.key, review.certificates), (ReviewKey::None, None));
    assert_eq!((review.timeout_ms, review.budget_calls, review.budget_bytes), (5_000, 200, 8 << 20));
    let all = format!(
        "{GOOD}key_file = \"~/k\"\ncertificates = \"/etc/ca.pem\"\ntimeout = \"2s\"\nbudget = {{ calls = 3, bytes = \"1KiB\" }}\n"
    );
    let settings = merge(&[(ConfigLayer::User, &all)]).unwrap();
    let shown: Vec<_> = settings
        .explain_profile("workspace")
        .into_iter()
        .filter(|line| line.key.starts_with("review."))
        .map(|line| format!("{} = {}", line.key, line.value))
        .collect();
    let expected = [
        "review.api = anthropic",
        "review.endpoint = https://api.example.com/v1/messages",
        "review.model = m-1",
        "review.key_file = /home/u/k",
        "review.certificates = /etc/ca.pem",
        "review.timeout = 2000ms",
        "review.budget.calls = 3",
        "review.budget.bytes = 1024",
    ];
    assert_eq!(shown, expected);
}

/// A stranger's repository neither sends the person's commands away nor keeps
/// them from being looked at.
#[test]
fn neither_project_nor_session_decides() {
    for section in [GOOD, "[review]\nenabled = false", "[review]", "[review.budget]\ncalls = 0"] {
        for layer in [ConfigLayer::Project, ConfigLayer::Session] {
            let error = merge(&[(ConfigLayer::User, GOOD), (layer, section)]).unwrap_err().to_string();
            assert!(error.contains(":1:") && error.contains("may only tighten"), "{layer}: {error}");
        }
        let settings = merge(&[(ConfigLayer::User, GOOD)]).unwrap();
        assert!(settings.with_session(Path::new("/session"), section).is_err(), "{section}");
    }
}

/// A key never goes to an endpoint that another file named.
#[test]
fn sections_do_not_mix() {
    let system = format!("{GOOD}key_env = \"COMPANY_KEY\"\n");
    let user = "[review]\napi = \"openai\"\nendpoint = \"http://localhost:1/\"\nmodel = \"x\"\n";
    let review = merge(&[(ConfigLayer::System, &system), (ConfigLayer::User, user)]).unwrap().review.value.unwrap();
    assert_eq!((review.api, review.key), (ReviewApi::Openai, ReviewKey::None));
    let half = merge(&[(ConfigLayer::System, &system), (ConfigLayer::User, "[review]\nmodel = \"x\"")]);
    assert!(half.unwrap_err().to_string().contains("needs `api`, `endpoint` and `model`"));
}

#[test]
fn managed_settings_are_in_force() {
    let user = "[review]\napi = \"openai\"\nendpoint = \"http://localhost:1/\"\nmodel = \"x\"\n";
    let settings = merge(&[(ConfigLayer::User, user), (ConfigLayer::Managed, GOOD)]).unwrap();
    assert_eq!(settings.review.origin.layer(), Some(ConfigLayer::Managed));
    let off = merge(&[(ConfigLayer::User, user), (ConfigLayer::Managed, "[review]\nenabled = false")]).unwrap();
    assert_eq!(off.review.value, None);
}

#[test]
fn a_contradiction_is_refused_with_its_position() {
    let with = |more: &str| format!("{GOOD}{more}");
    let plain = GOOD.replace("https://api.example.com", "http://api.example.com");
    let cases = [
        (GOOD.replace("endpoint", "endpont"), "3:1: unknown key `endpont`\nhint: did you mean `endpoint`?"),
        (GOOD.replace("anthropic", "antropic"), "2:7: unknown value `antropic`\nhint: did you mean `anthropic`?"),
        (plain, "`http://` has no encryption"),
        (GOOD.replace("https://", "https://u:p@"), "an endpoint must not contain a user name or password"),
        (GOOD.replace("m-1", "m 1"), "a model's name is printable ASCII"),
        (with("timeout = \"6s\""), "5:1: `review.timeout`: a question waits at most `5s` for the reviewer"),
        (with("key_env = \"A\"\nkey_file = \"~/k\""), "6:1: `review.key_file`: the key is in `key_env` or"),
        (with("key_env = \"A-B\""), "a variable is letters, digits"),
        (with("key_file = \"./k\""), "5:1: `review.key_file`: files of a workspace are not trusted"),
        (with("certificates = \"./ca\""), "5:1: `review.certificates`: files of a workspace"),
        (with("key = \"sk-123\""), "unknown key `key`"),
    ];
    for (source, expected) in cases {
        let error = merge(&[(ConfigLayer::User, &source)]).unwrap_err().to_string();
        assert!(error.contains(expected), "{source}\n{error}");
    }
}

/// Consent is bound to what may be done, not to who was asked about it.
#[test]
fn an_opinion_is_no_part_of_the_approval() {
    assert_eq!(merge(&[]).unwrap().compute_digest(), merge(&[(ConfigLayer::User, GOOD)]).unwrap().compute_digest());
}

/// A run never reads the key that its own questions are sent with.
#[test]
fn no_run_reads_the_key() {
    let dir = tempfile::tempdir().unwrap();
    let home = dir.path().canonicalize().unwrap();
    std::fs::create_dir_all(home.join(".config/stockade")).unwrap();
    std::fs::write(home.join("real-key"), "k").unwrap();
    symlink(home.join("real-key"), home.join("key")).unwrap();
    let file = home.join(".config/stockade/config.toml");
    std::fs::write(&file, format!("{GOOD}key_file = \"~/key\"\n")).unwrap();
    std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o600)).unwrap();
    let nowhere = Path::new("/nonexistent");
    let mut sources = ConfigSources::at_standard_paths(&home, None, None, None);
    (sources.managed_file, sources.system_file) = (nowhere.join("m"), nowhere.join("s"));
    let settings = load_settings(&sources).unwrap();
    let hidden = |name: &str| -> Vec<PathBuf> {
        let profile = resolve_profile(&settings, name, &home.join("work"), &[]).unwrap();
        profile.filesystem.hide.iter().map(|path| path.as_path().to_owned()).collect()
    };
    for name in ["read-only", "workspace"] {
        for key in ["key", "real-key"] {
            assert!(hidden(name).contains(&home.join(key)), "{name} {key}");
        }
    }
    let grant = format!("read {}", home.join("real-key").display()).parse().unwrap();
    assert!(resolve_profile(&settings, "workspace", &home.join("work"), &[grant]).is_err());
}

#[test]
fn a_project_does_not_set_notifications_either() {
    let notify_section = "[notify]\nprogram = [\"/usr/bin/notify-send\"]\n";
    assert!(merge(&[(ConfigLayer::System, notify_section)]).unwrap().notify.value.is_some());
    assert_eq!(
        merge(&[(ConfigLayer::System, notify_section), (ConfigLayer::User, "[notify]")]).unwrap().notify.value,
        None
    );
    for layer in [ConfigLayer::Project, ConfigLayer::Session] {
        let error = merge(&[(ConfigLayer::User, notify_section), (layer, notify_section)]).unwrap_err().to_string();
        assert!(error.contains(":1:") && error.contains("may only tighten"), "{layer}: {error}");
    }
    let error = merge(&[(ConfigLayer::User, "[notify]\nprogram = [\"notify-send\"]")]).unwrap_err().to_string();
    assert!(error.contains(":2:") && error.contains("absolute path"), "{error}");
}
