//! The agent of a run over its sockets, with a user's agent that records its requests.

use std::io::{Read as _, Write as _};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::sync::mpsc::{Receiver, channel};

use super::*;
use crate::filter::message;
use crate::host_key::compute_fingerprint;
use crate::host_key::tests::TestKey;
use crate::statement::tests::git_text;
use crate::wire::put_string;

/// User's agent with one key, which records all requests.
fn persons_agent(directory: &Path) -> (UserSshAgent, Receiver<Vec<u8>>) {
    let path = directory.join("agent");
    let listener = UnixListener::bind(&path).unwrap();
    let (sender, agent_requests) = channel();
    thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            while let Some(question) = read(&mut stream) {
                let key = TestKey::new(1);
                let mut answer = Vec::new();
                if question == [message::REQUEST_IDENTITIES] {
                    answer.extend_from_slice(&[message::IDENTITIES_ANSWER, 0, 0, 0, 1]);
                    put_string(&mut answer, &key.public_key_bytes());
                    put_string(&mut answer, b"comment");
                } else {
                    answer.push(message::SIGN_RESPONSE);
                    put_string(&mut answer, b"signature");
                }
                let _ = sender.send(question);
                write(&mut stream, &answer);
            }
        }
    });
    (UserSshAgent::at_socket(path), agent_requests)
}

fn read(stream: &mut UnixStream) -> Option<Vec<u8>> {
    let mut length = [0; 4];
    stream.read_exact(&mut length).ok()?;
    let mut body = vec![0; u32::from_be_bytes(length) as usize];
    stream.read_exact(&mut body).ok()?;
    Some(body)
}

fn write(stream: &mut UnixStream, message: &[u8]) {
    let mut framed = Vec::new();
    put_string(&mut framed, message);
    let _ = stream.write_all(&framed);
}

fn connect(socket: &OwnedFd) -> UnixStream {
    use std::os::fd::AsRawFd as _;
    let stream = UnixStream::connect(PathBuf::from(format!("/proc/self/fd/{}", socket.as_raw_fd()))).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
    stream
}

struct Lab {
    directory: tempfile::TempDir,
    socket: Arc<OwnedFd>,
    handle: Option<AgentHandle>,
    agent_requests: Receiver<Vec<u8>>,
    events: Receiver<SigningEvent>,
}

fn lab() -> Lab {
    let directory = tempfile::tempdir().unwrap();
    let (agent, agent_requests) = persons_agent(directory.path());
    let grant_text =
        format!("{} for git", compute_fingerprint(&TestKey::new(1).public_key_bytes()).unwrap()).parse().unwrap();
    let listener = AgentListener::prepare_agent(&[grant_text], agent, (directory.path(), directory.path())).unwrap();
    let socket = listener.socket();
    let (sender, events) = channel();
    let handle = listener.start_serving(move |event| drop(sender.send(event))).unwrap();
    assert_eq!(agent_requests.recv().unwrap(), [message::REQUEST_IDENTITIES]);
    Lab { directory, socket, handle: Some(handle), agent_requests, events }
}

fn sign_git() -> Vec<u8> {
    let mut out = vec![message::SIGN_REQUEST];
    put_string(&mut out, &TestKey::new(1).public_key_bytes());
    put_string(&mut out, &git_text(b"git", b"", b"sha256", &[1; 32]));
    out.extend_from_slice(&[0; 4]);
    out
}

#[test]
fn the_socket_has_no_name_and_the_agent_of_the_person_is_asked_for_signatures_alone() {
    let lab = lab();
    let names: Vec<_> = lab.directory.path().read_dir().unwrap().flatten().map(|entry| entry.file_name()).collect();
    assert_eq!(names, ["agent"]);
    let mut stream = connect(&lab.socket);
    for kind in [message::REQUEST_IDENTITIES, 17, 18, 19, 22, 27] {
        write(&mut stream, &[kind]);
        let expected = if kind == message::REQUEST_IDENTITIES { message::IDENTITIES_ANSWER } else { message::FAILURE };
        assert_eq!(read(&mut stream).unwrap()[0], expected, "{kind}");
    }
    assert!(lab.agent_requests.try_recv().is_err());
    write(&mut stream, &sign_git());
    assert_eq!(read(&mut stream).unwrap()[0], message::SIGN_RESPONSE);
    assert_eq!(lab.agent_requests.recv().unwrap(), sign_git());
    let events: Vec<_> = lab.events.try_iter().collect();
    assert_eq!(events.iter().filter(|event| matches!(event, SigningEvent::Refused(_))).count(), 4);
    assert!(matches!(events.last(), Some(SigningEvent::Signed(_))));
}

#[test]
fn a_malformed_message_ends_its_connection_alone() {
    let lab = lab();
    for bytes in [&[0, 0, 0, 0][..], &[0, 4, 0, 1, 11], &[0xff; 8]] {
        let mut stream = connect(&lab.socket);
        stream.write_all(bytes).unwrap();
        assert_eq!(stream.read(&mut [0; 8]).unwrap_or(0), 0, "{bytes:?}");
    }
    let mut cut = connect(&lab.socket);
    cut.write_all(&[0, 0, 0, 9, 13]).unwrap();
    cut.shutdown(std::net::Shutdown::Write).unwrap();
    assert_eq!(cut.read(&mut [0; 8]).unwrap_or(0), 0);
    let mut stream = connect(&lab.socket);
    write(&mut stream, &sign_git());
    assert_eq!(read(&mut stream).unwrap()[0], message::SIGN_RESPONSE);
}

#[test]
fn a_thousand_connections_take_no_more_than_sixteen_threads() {
    let lab = lab();
    let mut streams: Vec<UnixStream> = (0..1000).map(|_| connect(&lab.socket)).collect();
    let mut answered = 0;
    for stream in &mut streams {
        write(stream, &[message::REQUEST_IDENTITIES]);
        answered += usize::from(read(stream).is_some());
    }
    assert!(answered <= MAX_CONNECTIONS && answered > 0, "{answered}");
    drop(streams);
    let deadline = Instant::now() + Duration::from_secs(10);
    loop {
        let mut stream = connect(&lab.socket);
        write(&mut stream, &[message::REQUEST_IDENTITIES]);
        if read(&mut stream).is_some() {
            return;
        }
        assert!(Instant::now() < deadline, "no connection is served any more");
    }
}

#[test]
fn nothing_answers_once_the_run_is_over() {
    let mut lab = lab();
    let mut stream = connect(&lab.socket);
    write(&mut stream, &[message::REQUEST_IDENTITIES]);
    assert!(read(&mut stream).is_some());
    drop(lab.handle.take());
    assert_eq!(stream.read(&mut [0; 8]).unwrap_or(0), 0);
}

#[test]
fn an_impossible_power_is_reported_with_a_remedy() {
    let directory = tempfile::tempdir().unwrap();
    let (agent, _agent_requests) = persons_agent(directory.path());
    let key = |seed| compute_fingerprint(&TestKey::new(seed).public_key_bytes()).unwrap();
    let prepare = |grant_text: String, agent: &UserSshAgent| {
        let uses = [grant_text.parse().unwrap()];
        AgentListener::prepare_agent(&uses, agent.clone(), (directory.path(), directory.path()))
            .unwrap_err()
            .to_string()
    };
    let none = UserSshAgent::at_socket(directory.path().join("none"));
    for (error_text, hint) in [
        (prepare(format!("{} for git", key(2)), &agent), "hint: add it: ssh-add"),
        (
            prepare(format!("{} to a.example:2222", key(1)), &agent),
            "hint: connect to it once yourself: ssh -p 2222 a.example",
        ),
        (prepare(format!("{} for git", key(1)), &none), "hint: start one and add a key"),
    ] {
        assert!(error_text.contains(hint), "{error_text}");
    }
}
