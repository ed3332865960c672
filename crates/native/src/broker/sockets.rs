//! Connecting and binding sockets.
//!
//! A connect is made on a copy of the caller's socket with the broker's copy of
//! the address, and to the very socket file that was decided on. A bind of a path is made
//! on behalf, but in a private tree, where the floor lets the run make what it likes and
//! nowhere else: a call that went on could have been given another path meanwhile. What
//! was bound is held (`bound.rs`).

use std::ffi::{CString, OsStr};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::ops::ControlFlow;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;

use rustix::fs::{Access, FileType, Mode, OFlags, Stat, fcntl_getfl, fstat};
use rustix::net::sockopt::{ipv6_v6only, socket_domain, socket_type};
use rustix::net::{AddressFamily, SocketType};
use rustix::thread::set_no_new_privs;
use stockade_model::{Layer, Level, Operation};
use stockade_sys::landlock::{Ruleset, access};
use stockade_sys::notify::Answer;
use stockade_sys::{Errno, actor, resolve};

use super::bound::MAX_BOUND;
use super::caller::Caller;
use super::connects::{address_for, plain};
use super::deed::{Deed, Step, Work};
use super::kept_ports::KeptPort;
use super::ledger::{Actor, Denied};
use super::servers::{FIRST_PORT, MAX_PORTS_TRIED, free_port, is_served};
use super::service::{Failure, Reply, Service, native_access, refused};
use super::view::own_directory;
use super::walk::{Object, Place};
use crate::powers::{Refusal, Verdict};
use crate::signing::AGENT_PATH;

/// `sizeof(struct sockaddr_storage)`: the kernel takes no more.
const MAX_ADDRESS: u64 = 128;
/// Longest path in `struct sockaddr_un`, without its NUL.
const MAX_UNIX_PATH: usize = 107;
/// The first ABI of Landlock has the right that is needed here.
const FIRST_ABI: u32 = 1;
/// Where the path starts in `struct sockaddr_un`.
const PATH_OFFSET: usize = 2;

/// Whom a connect is for.
enum Peer {
    /// A socket file that the caller names.
    Path(CString),
    /// A name in the network namespace.
    Abstract(Vec<u8>),
    /// An internet address.
    Internet(SocketAddr),
    /// Anything else, such as taking a connection back.
    Other,
}

/// A connect, ready to be made.
pub(super) struct Connection {
    /// A copy of the caller's socket.
    pub socket: OwnedFd,
    /// Whether the caller's socket waits for its peer.
    pub waits: bool,
    peer: Target,
}

/// Where a connection leads.
enum Target {
    /// To the socket file that is held.
    File(Object),
    /// To the ssh agent of the run.
    Agent(Arc<OwnedFd>),
    /// To a name in the network namespace.
    Abstract { name: Vec<u8>, address: Vec<u8> },
    /// To an internet address, as a stream.
    Internet { dialled: SocketAddr, address: Vec<u8>, who: Actor },
    /// Nowhere: whatever the kernel makes of it.
    Other { address: Vec<u8> },
}

impl Connection {
    /// The socket file that it leads to.
    pub fn file(&self) -> Option<&Object> {
        match &self.peer {
            Target::File(object) => Some(object),
            _ => None,
        }
    }

    /// The address as the caller gave it; none where a file is held.
    pub fn address(&self) -> &[u8] {
        match &self.peer {
            Target::File(_) | Target::Agent(_) => &[],
            Target::Abstract { address, .. } | Target::Internet { address, .. } | Target::Other { address } => address,
        }
    }
}

impl Service {
    /// Reads a connect: copies the socket and the address, and holds the socket
    /// file.
    pub(super) fn read_connect(&self, caller: &Caller) -> Result<Deed, Failure> {
        let address = read_address(caller)?;
        let socket = caller.descriptor(caller.int(0))?;
        let domain = socket_domain(&socket)?;
        self.must_still_wait(caller)?;
        let peer = peer(&address, domain);
        self.permit_use(&socket, &peer)?;
        let waits = !fcntl_getfl(&socket)?.contains(OFlags::NONBLOCK);
        let peer = match peer {
            Peer::Path(path) if path.to_bytes() == AGENT_PATH.as_bytes() && self.powers.agents.own.is_some() => {
                // Its socket has no name: this path leads there, in no view.
                self.powers.agents.own.clone().map_or(Target::Other { address }, Target::Agent)
            }
            Peer::Path(path) => Target::File(self.walk(caller)?.find(libc::AT_FDCWD, &path, true)?),
            Peer::Abstract(name) => Target::Abstract { name, address },
            Peer::Internet(dialled) if socket_type(&socket)? == SocketType::STREAM => {
                let who = if self.may_lead_out(dialled) { self.actor(caller) } else { Actor::default() };
                Target::Internet { dialled, address, who }
            }
            // A datagram leads nowhere but to the run itself and to its names.
            Peer::Internet(_) | Peer::Other => Target::Other { address },
        };
        Ok(Deed::Connect(Connection { socket, waits, peer }))
    }

    /// A socket of the host's network, which a run may have been given as a stream,
    /// is used as it is and leads nowhere else; nor does one of another kind than
    /// those that a run can make.
    fn permit_use(&self, socket: &OwnedFd, peer: &Peer) -> Result<(), Errno> {
        let is_own = match peer {
            Peer::Path(_) => true,
            Peer::Internet(_) if self.level != Level::Full => socket_type(socket)? == SocketType::STREAM,
            _ => self.way.as_ref().is_none_or(|way| way.is_own(socket.as_fd())),
        };
        if is_own { Ok(()) } else { Err(Errno::ACCESS) }
    }

    /// May a connection be made to this socket file?
    fn permit_socket(&self, object: &Object) -> Result<(), Failure> {
        native_access(&object.fd, Access::WRITE_OK)?;
        if object.kind() != FileType::Socket {
            return Err(Errno::CONNREFUSED.into());
        }
        self.permit_socket_object(&object.stat, &object.path, Operation::Connect)
    }

    /// A socket that the run has not bound itself is neither connected to nor given
    /// another name without a grant: a power over sockets is one over a path.
    pub(super) fn permit_socket_object(&self, stat: &Stat, path: &[u8], operation: Operation) -> Result<(), Failure> {
        if FileType::from_raw_mode(stat.st_mode) != FileType::Socket || self.bound.has(stat) {
            return Ok(());
        }
        if self.powers.agents.is_persons(Path::new(OsStr::from_bytes(path)), (stat.st_dev, stat.st_ino)) {
            let rule = "the person's ssh agent, which no run reaches: `@git-signing` and `@ssh:HOST` let a key sign";
            return Err(refused(operation, path, Refusal { rule: rule.to_owned(), grant: None }));
        }
        match self.powers.socket(Path::new(OsStr::from_bytes(path))) {
            Verdict::Allow | Verdict::Private => Ok(()),
            Verdict::Refuse(refusal) => Err(refused(operation, path, refusal)),
        }
    }

    /// Carries out a connect with the powers of now.
    pub(super) fn connect_to(&self, id: u64, connection: &Connection) -> Result<Step, Failure> {
        match &connection.peer {
            Target::File(object) => self.permit_socket(object)?,
            Target::Abstract { name, .. } if !self.has_own_network() && !name.is_empty() => {
                let object = [b"@", &name[..]].concat();
                let refusal = Refusal { rule: "an abstract unix socket of the host".to_owned(), grant: None };
                return Err(refused(Operation::Connect, &object, refusal));
            }
            Target::Internet { dialled, who, .. } => return self.connect_out(id, connection, (*dialled, who)),
            Target::Agent(_) | Target::Abstract { .. } | Target::Other { .. } => {}
        }
        self.connect_natively(id, connection)
    }

    /// Connects to a server of the run's own on the host's loopback, whose address is kept for
    /// it meanwhile. It is spelled anew: to some sockets "any address" means another one.
    pub(super) fn connect_server(
        &self,
        id: u64,
        connection: &Connection,
        server: Arc<KeptPort>,
    ) -> Result<Step, Failure> {
        let socket = Arc::new(connection.socket.try_clone().map_err(|_| Errno::MFILE)?);
        let address = address_for(socket_domain(&socket)?, server.at());
        let notifier = self.notifier.clone();
        let job = Box::new(move || {
            server.connect(&socket, &address, |connected| {
                // Failing to answer means that the caller is gone.
                let _ = notifier.answer(id, connected.map_or_else(Answer::Error, |()| Answer::Value(0)));
            });
        });
        Ok(Step::Work(Work { job, pipe: None }))
    }

    /// Connects at once where the socket does not wait, else on another thread.
    pub(super) fn connect_natively(&self, id: u64, connection: &Connection) -> Result<Step, Failure> {
        let (address, held) = match &connection.peer {
            Target::File(object) => {
                let held = object.fd.try_clone().map_err(|_| Errno::MFILE)?;
                (held_address(&held), Some(held))
            }
            Target::Agent(socket) => {
                let held = socket.try_clone().map_err(|_| Errno::MFILE)?;
                (held_address(&held), Some(held))
            }
            _ => (connection.address().to_vec(), None),
        };
        if !connection.waits {
            actor::connect(connection.socket.as_fd(), &address)?;
            return Ok(Step::zero());
        }
        let socket = connection.socket.try_clone().map_err(|_| Errno::MFILE)?;
        let notifier = self.notifier.clone();
        let job = Box::new(move || {
            let connected = actor::connect(socket.as_fd(), &address);
            // It keeps alive what the address names.
            drop(held);
            // Failing to answer means that the caller is gone.
            let _ = notifier.answer(id, connected.map_or_else(Answer::Error, |()| Answer::Value(0)));
        });
        Ok(Step::Work(Work { job, pipe: None }))
    }

    /// Reads a bind. What no path names is the floor's, or a server's, and done with.
    pub(super) fn read_bind(&self, caller: &Caller) -> Result<ControlFlow<Step, Deed>, Failure> {
        let address = read_address(caller)?;
        let socket = caller.descriptor(caller.int(0))?;
        let domain = socket_domain(&socket)?;
        let path = match peer(&address, domain) {
            Peer::Path(path) => path,
            _ if self.has_own_network() || domain == AddressFamily::UNIX => {
                return Ok(ControlFlow::Break(Step::Done(Reply::Continue)));
            }
            Peer::Internet(at) => {
                self.must_still_wait(caller)?;
                self.bind_server(&socket, served(at, &address, &socket)?)?;
                return Ok(ControlFlow::Break(Step::zero()));
            }
            Peer::Abstract(_) | Peer::Other => return Err(no_server(b"a port of the kernel's choice")),
        };
        let mask = !self.masked(caller, 0o7777)?;
        let place = self.walk(caller)?.place(libc::AT_FDCWD, &path)?;
        Ok(ControlFlow::Continue(Deed::Bind { socket, place, mask }))
    }

    /// Without a network of its own a run serves its own processes alone, on the loopback of
    /// the host.
    fn bind_server(&self, socket: &OwnedFd, at: SocketAddr) -> Result<(), Failure> {
        let is_of_system = (1..FIRST_PORT).contains(&at.port());
        if !at.ip().is_loopback() || is_of_system || socket_type(socket)? != SocketType::STREAM {
            return Err(no_server(at.to_string().as_bytes()));
        }
        let domain = socket_domain(socket)?;
        if at.port() != 0 {
            let bind = || actor::bind(socket.as_fd(), &address_for(domain, at));
            return Ok(self.servers.once_given_back(at.port(), bind)?);
        }
        for _ in 0..MAX_PORTS_TRIED {
            let port = free_port(at.ip(), is_served)?;
            match actor::bind(socket.as_fd(), &address_for(domain, SocketAddr::new(at.ip(), port))) {
                Err(Errno::ADDRINUSE) => {}
                bound => return Ok(bound?),
            }
        }
        Err(Errno::ADDRINUSE.into())
    }

    /// Lets a socket listen, on behalf: a call that went on could have been given another
    /// socket meanwhile.
    pub(super) fn listen(&self, caller: &Caller) -> Result<Step, Failure> {
        let socket = caller.descriptor(caller.int(0))?;
        let is_unix = socket_domain(&socket)? == AddressFamily::UNIX;
        self.must_still_wait(caller)?;
        if is_unix || self.has_own_network() {
            rustix::net::listen(&socket, caller.int(1))?;
            return Ok(Step::zero());
        }
        match self.servers.listen(socket.as_fd(), caller.int(1)) {
            Ok(()) => Ok(Step::zero()),
            Err(Errno::ACCESS) => Err(no_server(b"a port of the kernel's choice")),
            Err(errno) => Err(errno.into()),
        }
    }

    /// Binds on behalf, and holds the socket that was made. In a private tree of the
    /// floor's the call goes on.
    pub(super) fn bind(&self, socket: &OwnedFd, place: &Place, mask: Mode) -> Result<Step, Failure> {
        if place.special || place.step().is_ok() {
            return Err(Errno::ADDRINUSE.into());
        }
        let path = place.path();
        match self.decide(Operation::Bind, &path) {
            Verdict::Refuse(refusal) => {
                native_access(&place.directory.fd, Access::WRITE_OK | Access::EXEC_OK)?;
                return Err(refused(Operation::Bind, &path, refusal));
            }
            Verdict::Private if self.powers.floor_allows(&path) => return Ok(Step::Done(Reply::Continue)),
            Verdict::Private | Verdict::Allow => {}
        }
        if !self.bound.has_room() {
            let rule = format!("no more than {MAX_BOUND} sockets with a path at a time");
            return Err(refused(Operation::Bind, &path, Refusal { rule, grant: None }));
        }
        let directory = self.through(place, &path);
        self.bind_at(socket, place, &path, directory.as_fd())?;
        self.confirm_new((place, directory.as_fd()), &path, Operation::Bind)?;
        // Where the directory was moved meanwhile the socket is elsewhere, and nobody's.
        let made = resolve::step(directory.as_fd(), &place.name).map_err(|_| Errno::ACCESS)?;
        let stat = fstat(&made)?;
        if FileType::from_raw_mode(stat.st_mode) != FileType::Socket {
            return Err(Errno::ACCESS.into());
        }
        // The umask of the broker is 0. Nobody can connect before it listens.
        let mode = Mode::from_raw_mode(stat.st_mode) - mask;
        actor::chmod(made.as_fd(), mode.bits())?;
        self.bound.hold(made)?;
        Ok(Step::zero())
    }

    /// Binds to `place`, as whoever asks for the address will be told: its path without
    /// links where the front has the same directory there, and else one that leads there by
    /// the descriptor. Another run may lead the path elsewhere meanwhile: the kernel lets the
    /// call make a socket in that directory and nowhere else.
    fn bind_at(&self, socket: &OwnedFd, place: &Place, path: &[u8], held: BorrowedFd<'_>) -> Result<(), Errno> {
        let own = own_directory(&place.directory).ok().filter(|_| !self.powers.is_staged(path));
        match own {
            Some(own) if path.len() <= MAX_UNIX_PATH => bind_within(socket.as_fd(), &unix_address(path), own.as_fd()),
            _ => {
                let by_descriptor = resolve::DescriptorPath::new(held);
                let path = [by_descriptor.as_c_str().to_bytes(), b"/", place.name.as_bytes()].concat();
                actor::bind(socket.as_fd(), &unix_address(&path))
            }
        }
    }
}

/// The address that a server gets which asks for `at`: of all addresses of the machine, of
/// both kinds where it takes both, the loopback's.
fn served(at: SocketAddr, address: &[u8], socket: &OwnedFd) -> Result<SocketAddr, Errno> {
    let is_any = address.get(8..24) == Some(&[0; 16]) && socket_domain(socket)? == AddressFamily::INET6;
    let takes_both = is_any && !ipv6_v6only(socket)?;
    Ok(if takes_both { SocketAddr::new(Ipv4Addr::LOCALHOST.into(), at.port()) } else { at })
}

fn no_server(object: &[u8]) -> Failure {
    let rule = format!(
        "without a network of its own (level restricted) a run serves on the loopback alone, from port {FIRST_PORT} on, over TCP"
    );
    refused(Operation::Bind, object, Refusal { rule, grant: None })
}

/// Binds to an address that must lead into `directory`, on a thread that may make sockets
/// there alone.
fn bind_within(socket: BorrowedFd<'_>, address: &[u8], directory: BorrowedFd<'_>) -> Result<(), Errno> {
    let rules = Ruleset::new(FIRST_ABI, access::MAKE_SOCK, 0, 0)?;
    rules.allow(directory, access::MAKE_SOCK)?;
    let bind = || {
        set_no_new_privs(true)?;
        rules.restrict_self()?;
        actor::bind(socket, address)
    };
    std::thread::scope(|scope| {
        let thread = std::thread::Builder::new().name("bind".to_owned()).spawn_scoped(scope, bind);
        thread.map_err(|_| Errno::AGAIN)?.join().unwrap_or(Err(Errno::IO))
    })
}

fn read_address(caller: &Caller) -> Result<Vec<u8>, Errno> {
    match u64::from(caller.unsigned(2)) {
        length @ 0..=MAX_ADDRESS => caller.bytes(1, length as usize),
        _ => Err(Errno::INVAL),
    }
}

/// What an address means to a socket of `domain`.
fn peer(address: &[u8], domain: AddressFamily) -> Peer {
    let Some(family) = address.first_chunk::<2>().map(|f| u16::from_ne_bytes(*f)) else { return Peer::Other };
    if family != domain.as_raw() {
        return Peer::Other;
    }
    match domain {
        AddressFamily::UNIX => {
            let path = &address[PATH_OFFSET..];
            let end = path.iter().position(|b| *b == 0).unwrap_or(path.len());
            match path.first() {
                None => Peer::Other,
                Some(0) => Peer::Abstract(path[1..].to_vec()),
                Some(_) => CString::new(&path[..end]).map_or(Peer::Other, Peer::Path),
            }
        }
        AddressFamily::INET => {
            let host = address.get(4..8).and_then(|a| a.first_chunk::<4>()).map(|host| Ipv4Addr::from(*host));
            internet(host.map(IpAddr::V4), address)
        }
        AddressFamily::INET6 => {
            let host = address.get(8..24).and_then(|a| a.first_chunk::<16>()).map(|host| Ipv6Addr::from(*host));
            internet(host.map(IpAddr::V6), address)
        }
        _ => Peer::Other,
    }
}

fn internet(host: Option<IpAddr>, address: &[u8]) -> Peer {
    let port = address.get(2..4).and_then(|p| p.first_chunk::<2>()).map(|p| u16::from_be_bytes(*p));
    host.zip(port).map_or(Peer::Other, |(host, port)| Peer::Internet(plain(host, port)))
}

/// A unix address that leads to exactly what `fd` holds.
fn held_address(fd: &OwnedFd) -> Vec<u8> {
    unix_address(resolve::DescriptorPath::new(fd.as_fd()).as_c_str().to_bytes())
}

fn unix_address(path: &[u8]) -> Vec<u8> {
    [&AddressFamily::UNIX.as_raw().to_ne_bytes(), path, b"\0"].concat()
}

/// Why a socket of the internet that is none for TCP is not made.
pub(super) fn no_internet(caller: &Caller) -> Denied {
    let family = if caller.int(0) == libc::AF_INET { "AF_INET" } else { "AF_INET6" };
    Denied {
        operation: Operation::Socket,
        object: family.as_bytes().to_vec(),
        layer: Layer::Broker,
        refusal: Refusal { rule: "TCP alone has a way out at level restricted".to_owned(), grant: None },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(address: &[u8], domain: AddressFamily, expected: &str) {
        let shown = match peer(address, domain) {
            Peer::Path(path) => format!("path {}", path.to_string_lossy()),
            Peer::Abstract(name) => format!("abstract {}", name.len()),
            Peer::Internet(dialled) => dialled.to_string(),
            Peer::Other => "other".to_owned(),
        };
        assert_eq!(shown, expected);
    }

    #[test]
    fn addresses() {
        let unix = |tail: &[u8]| [&1_u16.to_ne_bytes()[..], tail].concat();
        check(&unix(b"/a\0junk"), AddressFamily::UNIX, "path /a");
        check(&unix(b"no end"), AddressFamily::UNIX, "path no end");
        check(&unix(b"\0name"), AddressFamily::UNIX, "abstract 4");
        check(&unix(b""), AddressFamily::UNIX, "other");
        check(&unix(b"/a"), AddressFamily::INET, "other");
        check(&[2, 0, 0, 80, 127, 0, 0, 1, 0, 0], AddressFamily::INET, "127.0.0.1:80");
        check(&[2, 0, 0, 80, 127], AddressFamily::INET, "other");
        let mut six = vec![10, 0, 1, 187, 0, 0, 0, 0];
        six.extend(Ipv6Addr::LOCALHOST.octets());
        check(&six, AddressFamily::INET6, "[::1]:443");
        check(&[0], AddressFamily::INET, "other");
        check(&[0, 0], AddressFamily::INET, "other");
    }
}
