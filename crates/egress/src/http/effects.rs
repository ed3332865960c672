//! Requests with an irreversible effect outside: for example, a package is published or an account
//! is changed. They need an approval whatever was granted, if the egress proxy can read them: over
//! plain HTTP, and if traffic is intercepted.
//!
//! The codes are those of the classifier's `knowledge/impacts.toml`, so that an approval of a
//! command includes its requests. The list is advice and no protection: a server may accept the
//! same request at another path.

use stockade_model::{EffectUse, NetworkTarget, text_matches};

/// Pattern of such requests. In a path and a host, `*` matches any text.
struct EffectPattern {
    methods: &'static [&'static str],
    hosts: &'static [&'static str],
    paths: &'static [&'static str],
    code: &'static str,
    message: &'static str,
}

const ANY_TEXT: &[&str] = &["*"];
const WRITE_METHODS: &[&str] = &["POST", "PUT", "PATCH", "DELETE"];

/// Sources: the API pages of each service; the distribution specification of the OCI (images); the
/// API of Kubernetes (clusters); the web API of cargo's registries (crates).
const KNOWN_EFFECTS: &[EffectPattern] = &[
    EffectPattern {
        methods: &["PUT", "DELETE"],
        hosts: &["registry.npmjs.org", "registry.yarnpkg.com", "npm.pkg.github.com"],
        paths: ANY_TEXT,
        code: "publishes",
        message: "Publishes or withdraws a package of npm's registry",
    },
    EffectPattern {
        methods: &["POST"],
        hosts: &["upload.pypi.org", "test.pypi.org"],
        paths: ANY_TEXT,
        code: "publishes",
        message: "Publishes a Python package",
    },
    EffectPattern {
        methods: &["PUT", "DELETE"],
        hosts: ANY_TEXT,
        paths: &["*/api/v1/crates/new", "*/api/v1/crates/*/yank"],
        code: "publishes",
        message: "Publishes or withdraws a crate",
    },
    EffectPattern {
        methods: &["POST", "DELETE"],
        hosts: &["rubygems.org"],
        paths: &["/api/v1/gems", "/api/v1/gems/*"],
        code: "publishes",
        message: "Publishes or withdraws a gem",
    },
    EffectPattern {
        methods: &["PUT", "DELETE"],
        hosts: &["www.nuget.org", "api.nuget.org"],
        paths: ANY_TEXT,
        code: "publishes",
        message: "Publishes or withdraws a .NET package",
    },
    EffectPattern {
        methods: &["POST", "PUT"],
        hosts: &["central.sonatype.com", "oss.sonatype.org", "*.oss.sonatype.org"],
        paths: ANY_TEXT,
        code: "publishes",
        message: "Publishes a Java package",
    },
    EffectPattern {
        methods: &["PUT", "DELETE"],
        hosts: ANY_TEXT,
        paths: &["/v2/*/manifests/*"],
        code: "publishes",
        message: "Publishes or removes an image of containers",
    },
    EffectPattern {
        methods: WRITE_METHODS,
        hosts: &["api.github.com", "uploads.github.com"],
        paths: &["/repos/*/releases", "/repos/*/releases/*"],
        code: "publishes",
        message: "Publishes or changes a release",
    },
    EffectPattern {
        methods: &["DELETE"],
        hosts: &["api.github.com", "gitlab.com", "api.bitbucket.org", "*.amazonaws.com", "*.googleapis.com"],
        paths: ANY_TEXT,
        code: "changes-account",
        message: "Removes something from an account of a service",
    },
    EffectPattern {
        methods: WRITE_METHODS,
        hosts: ANY_TEXT,
        paths: &["/api/v1/namespaces", "/api/v1/namespaces/*", "/apis/*/namespaces/*"],
        code: "changes-cluster",
        message: "Changes what runs in a cluster",
    },
    EffectPattern {
        methods: &["POST", "PUT"],
        hosts: &["transfer.sh", "0x0.st", "paste.rs", "ix.io", "termbin.com", "file.io", "bashupload.com"],
        paths: ANY_TEXT,
        code: "sends-files",
        message: "Leaves something for others to fetch",
    },
];

/// Returns the effect of a request, with a one-sentence description. `path` is as in the request.
pub(super) fn find_effect(target: &NetworkTarget, method: &str, path: &str) -> Option<(EffectUse, &'static str)> {
    let host = target.host.to_string().to_ascii_lowercase();
    let path = path.split(['?', '#']).next().unwrap_or_default().to_ascii_lowercase();
    let is_one = |patterns: &[&str], text: &str| patterns.iter().any(|pattern| text_matches(pattern, text));
    let known = KNOWN_EFFECTS.iter().find(|known| {
        known.methods.iter().any(|own| own.eq_ignore_ascii_case(method))
            && is_one(known.hosts, &host)
            && is_one(known.paths, &path)
    })?;
    Some((EffectUse::at_host(known.code, &host)?, known.message))
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
            let found = find_effect(&host.parse().unwrap(), method, path).map(|(wanted, _)| wanted.to_string());
            assert_eq!(found.unwrap_or_default(), expected, "{method} {host}{path}");
        }
    }
}
