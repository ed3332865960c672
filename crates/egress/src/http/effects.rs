//! Requests with an irreversible effect outside: for example, a package is published or an account
//! is changed. They need an approval whatever was granted, if the egress proxy can read them: over
//! plain HTTP, and if traffic is intercepted.
//!
//! The codes are those of the classifier's `knowledge/impacts.toml`, so that an approval of a
//! command includes its requests. The list is `effects.toml`. It is advice and no protection: a server
//! may accept the same request at another path.

use std::sync::LazyLock;

use serde::Deserialize;
use stockade_model::{EffectUse, NetworkTarget, text_matches};

/// Pattern of such requests. In a path and a host, `*` matches any text.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct EffectPattern {
    methods: Vec<String>,
    hosts: Vec<String>,
    paths: Vec<String>,
    code: String,
    message: String,
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct EffectTable {
    effect: Vec<EffectPattern>,
}

/// The table, which is compiled in; a test requires that it can be read.
static KNOWN_EFFECTS: LazyLock<EffectTable> =
    LazyLock::new(|| toml::from_str(include_str!("effects.toml")).unwrap_or_default());

/// Returns the effect of a request, with a one-sentence description. `path` is as in the request.
pub(super) fn find_effect(target: &NetworkTarget, method: &str, path: &str) -> Option<(EffectUse, &'static str)> {
    let host = target.host.to_string().to_ascii_lowercase();
    let path = path.split(['?', '#']).next().unwrap_or_default().to_ascii_lowercase();
    let is_one = |patterns: &[String], text: &str| patterns.iter().any(|pattern| text_matches(pattern, text));
    let known = KNOWN_EFFECTS.effect.iter().find(|known| {
        known.methods.iter().any(|own| own.eq_ignore_ascii_case(method))
            && is_one(&known.hosts, &host)
            && is_one(&known.paths, &path)
    })?;
    Some((EffectUse::at_host(&known.code, &host)?, &known.message))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_with_an_effect_are_known() {
        for (method, host, path, expected) in [
            ("PUT", "registry.npmjs.org:443", "/left-pad", "publishes at registry.npmjs.org"),
            ("GET", "registry.npmjs.org:443", "/left-pad", ""),
            ("post", "upload.pypi.org:443", "/legacy/?x=y", "publishes at upload.pypi.org"),
            ("PUT", "127.0.0.1:5000", "/v2/a/b/manifests/latest", "publishes at 127.0.0.1"),
            ("PUT", "127.0.0.1:5000", "/v2/a/b/blobs/uploads/1", ""),
            ("PUT", "[::1]:5000", "/v2/a/manifests/latest", "publishes at ::1"),
            ("PUT", "registry.corp:443", "/api/v1/crates/new", "publishes at registry.corp"),
            ("DELETE", "s3.eu-west-1.amazonaws.com:443", "/b/k", "changes-account at s3.eu-west-1.amazonaws.com"),
            ("PATCH", "10.0.0.1:6443", "/apis/apps/v1/namespaces/x/deployments/y", "changes-cluster at 10.0.0.1"),
            ("GET", "10.0.0.1:6443", "/api/v1/namespaces", ""),
            ("DELETE", "example.com:443", "/anything", ""),
        ] {
            let found =
                find_effect(&host.parse().unwrap(), method, path).map(|(effect_text, _)| effect_text.to_string());
            assert_eq!(found.unwrap_or_default(), expected, "{method} {host}{path}");
        }
    }
}
