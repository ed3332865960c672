//! Any path under any rule about requests.
#![no_main]

use libfuzzer_sys::fuzz_target;
use stockade_model::{Host, InspectionRules, NetworkTarget, RequestPattern, RequestRuling};

fuzz_target!(|bytes: &[u8]| check_rule_path(bytes));

fn request_target() -> NetworkTarget {
    NetworkTarget { host: Host::from_address(std::net::Ipv4Addr::LOCALHOST.into()), port: 80 }
}

/// Checks a path against the path of a rule. A refused path is refused in every case of its
/// letters. A path with one reading is text in its only form.
fn check_rule_path(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    let Some((rule, path)) = text.split_once(' ') else { return };
    let Ok(rule) = format!("* http://127.0.0.1{rule}").parse::<RequestPattern>() else { return };
    let inspection = InspectionRules { deny: vec![rule.clone()], ..InspectionRules::default() };
    assert_eq!(rule.to_string().parse().as_ref(), Ok(&rule));
    let ruled = |path: &str| inspection.apply_rules(false, &request_target(), "GET", path);
    let ruling = ruled(path);
    if let RequestRuling::Denied(_) = ruling {
        assert_eq!(ruled(&path.to_ascii_uppercase()), ruling);
    }
    if ruling != RequestRuling::Unclear {
        let path = path.split(['?', '#']).next().unwrap_or_default();
        let odd = ["//", "/./", "/../", "\\", ";", "%2f", "%2F", "%5c", "%c0", "%00", "%25"];
        assert!(path.starts_with('/') && path.is_ascii() && !odd.iter().any(|odd| path.contains(odd)), "{path}");
    }
}
