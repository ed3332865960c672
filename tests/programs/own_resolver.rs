//! A program that asks for names by itself, as static programs do: it reads
//! `/etc/resolv.conf`, speaks DNS over UDP, connects, and prints what an HTTP
//! server says. Nothing of the C library's resolver is in it.

use std::io::{Read as _, Write as _};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpStream, UdpSocket};
use std::process::ExitCode;
use std::time::Duration;

const WAIT: Duration = Duration::from_secs(10);

fn main() -> ExitCode {
    let Some(name) = std::env::args().nth(1) else {
        eprintln!("usage: own-resolver NAME");
        return ExitCode::from(2);
    };
    match fetch(&name) {
        Ok(text) => {
            println!("{text}");
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("{name}: {error}");
            ExitCode::FAILURE
        }
    }
}

fn fetch(name: &str) -> std::io::Result<String> {
    let address = look_up(name)?.ok_or_else(|| std::io::Error::other("no such name"))?;
    let mut stream = TcpStream::connect_timeout(&SocketAddr::new(address.into(), 80), WAIT)?;
    stream.set_read_timeout(Some(WAIT))?;
    write!(stream, "GET / HTTP/1.1\r\nHost: {name}\r\nConnection: close\r\n\r\n")?;
    let mut text = String::new();
    stream.read_to_string(&mut text)?;
    Ok(text)
}

fn name_server() -> std::io::Result<SocketAddr> {
    let text = std::fs::read_to_string("/etc/resolv.conf")?;
    let server = text.lines().filter_map(|line| line.strip_prefix("nameserver ")).find_map(|a| a.trim().parse().ok());
    server.map(|server: IpAddr| SocketAddr::new(server, 53)).ok_or_else(|| std::io::Error::other("no name server"))
}

fn look_up(name: &str) -> std::io::Result<Option<Ipv4Addr>> {
    let server = name_server()?;
    let local = if server.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" };
    let socket = UdpSocket::bind(local)?;
    socket.connect(server)?;
    socket.set_read_timeout(Some(WAIT))?;
    socket.send(&query(name))?;
    let mut answer = [0; 512];
    let length = socket.recv(&mut answer)?;
    Ok(first_address(&answer[..length]))
}

/// A question for A records, recursion desired (RFC 1035, 4.1).
fn query(name: &str) -> Vec<u8> {
    let mut message = vec![0x5a, 0x5a, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0];
    for label in name.split('.') {
        message.push(u8::try_from(label.len()).unwrap_or(63));
        message.extend(label.as_bytes());
    }
    message.extend([0, 0, 1, 0, 1]);
    message
}

/// The address of the first A record: type A, class IN, any life, four bytes.
fn first_address(answer: &[u8]) -> Option<Ipv4Addr> {
    let question = 12 + answer.get(12..)?.iter().position(|b| *b == 0)? + 5;
    let record = answer.get(question..)?.windows(14).find(|w| w[..4] == [0, 1, 0, 1] && w[8..10] == [0, 4])?;
    let octets: [u8; 4] = record[10..14].try_into().ok()?;
    Some(octets.into())
}
