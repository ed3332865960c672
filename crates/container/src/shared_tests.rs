//! What the tests of several modules need: a plan, and the bytes of a launcher that need not keep to
//! the protocol.

use std::collections::BTreeMap;

use stockade_model::{
    AttemptPlan, EgressRules, EnvironmentRules, ExecRules, FilesystemAccess, IsolationLevel, Limits, NetworkAccess,
    Profile, RequestId, SandboxId,
};

const DATA: u8 = 0;
const HEADERS: u8 = 1;
const SETTINGS: u8 = 4;
const END_STREAM: u8 = 1;
const END_HEADERS: u8 = 4;

fn frame(kind: u8, flags: u8, id: u32, body: &[u8]) -> Vec<u8> {
    let length = u32::try_from(body.len()).unwrap().to_be_bytes();
    [&length[1..], &[kind, flags], &id.to_be_bytes(), body].concat()
}

/// The beginning of a launcher's bytes (RFC 9113, section 3.4).
pub(crate) fn preface() -> Vec<u8> {
    [&b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"[..], &frame(SETTINGS, 0, 0, &[])].concat()
}

/// Opens a stream (RFC 7541: indexed fields, and literals without indexing).
pub(crate) fn open(id: u32, path: &str) -> Vec<u8> {
    let text = |index: u8, text: &str| [&[index, u8::try_from(text.len()).unwrap()], text.as_bytes()].concat();
    let fields = [vec![0x83, 0x86], text(4, path), text(1, "host")].concat();
    frame(HEADERS, END_HEADERS, id, &fields)
}

pub(crate) fn data(id: u32, bytes: &[u8]) -> Vec<u8> {
    frame(DATA, 0, id, bytes)
}

pub(crate) fn last_data(id: u32, bytes: &[u8]) -> Vec<u8> {
    frame(DATA, END_STREAM, id, bytes)
}

pub(crate) fn plan(grants: &[String]) -> AttemptPlan {
    let special = ["127.0.0.0/8".parse().unwrap()].into();
    AttemptPlan {
        request: RequestId::from_random([1; 16]),
        attempt: 1,
        argv: vec!["true".into()],
        environment: BTreeMap::new(),
        cwd: "/workspace".into(),
        workspace: "/workspace".into(),
        profile: Profile {
            name: SandboxId::from_random([1; 16]).to_string(),
            sandboxed: true,
            filesystem: FilesystemAccess::default(),
            exec: ExecRules::default(),
            network: NetworkAccess::None,
            egress: EgressRules { special, ..EgressRules::default() },
            environment: EnvironmentRules::default(),
            limits: Limits::default(),
        },
        grants: grants.iter().map(|grant| grant.parse().unwrap()).collect(),
        effects: Vec::new(),
        level: IsolationLevel::Full,
        backend: "docker".to_owned(),
    }
}
