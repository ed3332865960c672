//! Connects and binds sockets.
//!
//! A connect uses a copy of the caller's socket and the broker's copy of the address, and leads to
//! the very socket file that was decided on. The broker binds a path on the caller's behalf,
//! because the kernel would read the path again and it may have changed by then. Only in a private
//! tree the kernel carries the bind out: the kernel-enforced layer lets the run make sockets there
//! and nowhere else. A bound socket is held (`bound_sockets.rs`).

use std::ffi::{CStr, CString, OsStr};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::ops::ControlFlow;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;

use rustix::fs::{Access, FileType, Mode, OFlags, Stat, fcntl_getfl, fstat};
use rustix::net::sockopt::{ipv6_v6only, socket_domain, socket_type};
use rustix::net::{AddressFamily, SocketType};
use rustix::thread::set_no_new_privs;
use stockade_model::{DenialLayer, DeniedOperation, IsolationLevel};
use stockade_permissions::AGENT_PATH;
use stockade_permissions::powers::{PermissionRefusal, PermissionVerdict};
use stockade_sys::landlock::{Ruleset, access};
use stockade_sys::{Errno, actor, resolve};

use super::bound_sockets::MAX_BOUND_SOCKETS;
use super::brokered_call::BrokeredCall;
use super::call_result::{
    BlockingWork, CallFailure, CallProgress, CallResult, native_access, native_name_access, refuse_always,
    refuse_operation,
};
use super::caller::CallingThread;
use super::connects::{address_for, canonical_address};
use super::denials::{CallerProcess, RefusedOperation};
use super::reserved_ports::ReservedPort;
use super::servers::{FIRST_PORT, MAX_PORTS_TRIED, free_port, is_served};
use super::service::BrokerService;
use super::view::own_directory;
use super::walk::{ResolvedName, ResolvedObject};

/// `sizeof(struct sockaddr_storage)`, the kernel's maximum.
const MAX_ADDRESS_BYTES: u64 = 128;
/// Longest path in `struct sockaddr_un`, without its NUL.
const MAX_UNIX_PATH_BYTES: usize = 107;
/// The first Landlock ABI has the access right that is needed here.
const FIRST_LANDLOCK_ABI: u32 = 1;
/// Offset of the path in `struct sockaddr_un`.
const UNIX_PATH_OFFSET: usize = 2;

/// Peer that an address names.
enum SocketPeer {
    /// A socket file that the caller names.
    Path(CString),
    /// A name in the network namespace (abstract socket).
    Abstract(Vec<u8>),
    /// An internet address.
    Internet(SocketAddr),
    /// Any other address, for example one that dissolves a connection.
    Other,
}

/// A connect that is ready to be made.
pub(super) struct PreparedConnect {
    /// A copy of the caller's socket.
    pub socket: OwnedFd,
    /// True if the caller's socket is blocking.
    pub waits: bool,
    /// The address as the caller passed it.
    pub address: Vec<u8>,
    peer: ConnectTarget,
}

/// Peer of a connection, resolved.
enum ConnectTarget {
    /// The held socket file.
    File(ResolvedObject),
    /// The ssh agent of the run.
    Agent(Arc<OwnedFd>),
    /// A name in the network namespace.
    Abstract(Vec<u8>),
    /// An internet address, for a stream socket.
    Internet(SocketAddr, CallerProcess),
    /// Any other address; the kernel decides.
    Other,
}

impl PreparedConnect {
    /// Returns the socket file of the peer, if it has one.
    pub fn socket_file(&self) -> Option<&ResolvedObject> {
        match &self.peer {
            ConnectTarget::File(object) => Some(object),
            _ => None,
        }
    }
}

impl BrokerService {
    /// Reads a connect: copies the socket and the address, and holds the socket file.
    pub(super) fn read_connect(&self, caller: &CallingThread) -> CallResult<BrokeredCall> {
        let address = read_address(caller)?;
        let socket = caller.duplicate_descriptor(caller.int_argument(0))?;
        let domain = socket_domain(&socket)?;
        self.must_still_wait(caller)?;
        let peer = parse_peer(&address, domain);
        self.permit_use(&socket, &peer)?;
        let waits = !fcntl_getfl(&socket)?.contains(OFlags::NONBLOCK);
        let peer = match peer {
            // The agent's socket has no name; this path leads to it in no mount namespace.
            SocketPeer::Path(path)
                if path.to_bytes() == AGENT_PATH.as_bytes()
                    && let Some(agent) = &self.powers.agents.own =>
            {
                ConnectTarget::Agent(agent.clone())
            }
            SocketPeer::Path(path) => {
                ConnectTarget::File(self.start_resolution(caller)?.resolve_object(libc::AT_FDCWD, &path, true)?)
            }
            SocketPeer::Abstract(name) => ConnectTarget::Abstract(name),
            SocketPeer::Internet(dialled) if socket_type(&socket)? == SocketType::STREAM => {
                let process =
                    if self.may_lead_out(dialled) { self.identify_caller(caller) } else { CallerProcess::default() };
                ConnectTarget::Internet(dialled, process)
            }
            // A datagram can only reach the run itself and its name server.
            SocketPeer::Internet(_) | SocketPeer::Other => ConnectTarget::Other,
        };
        Ok(BrokeredCall::Connect(PreparedConnect { socket, waits, address, peer }))
    }

    /// Refuses to connect sockets that the run did not make. A run may have a socket of the host's
    /// network as a standard stream; the run uses it as it is. The same holds for socket types that
    /// a run cannot make.
    fn permit_use(&self, socket: &OwnedFd, peer: &SocketPeer) -> Result<(), Errno> {
        let is_own = match peer {
            SocketPeer::Path(_) => true,
            SocketPeer::Internet(_) if self.level != IsolationLevel::Full => socket_type(socket)? == SocketType::STREAM,
            _ => self.run_egress.as_ref().is_none_or(|run_egress| run_egress.is_own(socket.as_fd())),
        };
        if is_own { Ok(()) } else { Err(Errno::ACCESS) }
    }

    /// Checks whether a connect to this socket file is permitted.
    fn permit_socket(&self, object: &ResolvedObject) -> CallResult<()> {
        native_access(&object.fd, Access::WRITE_OK)?;
        if object.file_type() != FileType::Socket {
            return Err(Errno::CONNREFUSED.into());
        }
        self.permit_socket_object(&object.stat, &object.path, DeniedOperation::Connect)
    }

    /// Checks whether a socket file may be connected to, or get another name. A socket that the run
    /// has not bound itself needs a grant, because grants for sockets are by path.
    pub(super) fn permit_socket_object(&self, stat: &Stat, path: &[u8], operation: DeniedOperation) -> CallResult<()> {
        if FileType::from_raw_mode(stat.st_mode) != FileType::Socket || self.bound.has_socket(stat) {
            return Ok(());
        }
        if self.powers.agents.is_persons(Path::new(OsStr::from_bytes(path)), (stat.st_dev, stat.st_ino)) {
            let rule = "the user's ssh agent, which no run may reach: `@git-signing` and `@ssh:HOST` let a key sign";
            return Err(refuse_always(operation, path, rule));
        }
        match self.powers.decide_socket(Path::new(OsStr::from_bytes(path))) {
            PermissionVerdict::Refuse(refusal) => Err(refuse_operation(operation, path, refusal)),
            PermissionVerdict::Allow | PermissionVerdict::Private => Ok(()),
        }
    }

    /// Carries out a connect with the current powers.
    pub(super) fn connect_to(&self, id: u64, connection: &PreparedConnect) -> CallResult {
        match &connection.peer {
            ConnectTarget::File(object) => self.permit_socket(object)?,
            ConnectTarget::Abstract(name) if !self.has_own_network() && !name.is_empty() => {
                let object = [b"@", &name[..]].concat();
                return Err(refuse_always(DeniedOperation::Connect, &object, "an abstract unix socket of the host"));
            }
            ConnectTarget::Internet(dialled, process) => {
                return self.connect_out(id, connection, (*dialled, process));
            }
            ConnectTarget::Agent(_) | ConnectTarget::Abstract(_) | ConnectTarget::Other => {}
        }
        self.connect_natively(id, connection)
    }

    /// Connects to a server of the run on the host's loopback, whose address stays reserved
    /// meanwhile. The address is encoded again, because "any address" means another one to some sockets.
    pub(super) fn connect_server(
        &self,
        id: u64,
        connection: &PreparedConnect,
        server: Arc<ReservedPort>,
    ) -> CallResult {
        let socket = Arc::new(connection.socket.try_clone().map_err(|_| Errno::MFILE)?);
        let address = address_for(socket_domain(&socket)?, server.address());
        let notifier = self.notifier.clone();
        let job = Box::new(move || {
            server.connect_socket(&socket, &address, |connected| {
                // Fails only if the caller is gone.
                let _ = notifier.answer_call(id, connected.into());
            });
        });
        Ok(CallProgress::Work(BlockingWork { job, pipe: None }))
    }

    /// Connects at once if the socket is non-blocking, else on another thread.
    pub(super) fn connect_natively(&self, id: u64, connection: &PreparedConnect) -> CallResult {
        let held = match &connection.peer {
            ConnectTarget::File(object) => Some(&object.fd),
            ConnectTarget::Agent(socket) => Some(&**socket),
            _ => None,
        };
        let held = held.map(OwnedFd::try_clone).transpose().map_err(|_| Errno::MFILE)?;
        let address = held.as_ref().map_or_else(|| connection.address.clone(), held_address);
        if !connection.waits {
            actor::connect_socket(connection.socket.as_fd(), &address)?;
            return Ok(CallProgress::ZERO);
        }
        let socket = connection.socket.try_clone().map_err(|_| Errno::MFILE)?;
        let notifier = self.notifier.clone();
        let job = Box::new(move || {
            let connected = actor::connect_socket(socket.as_fd(), &address);
            // Keeps the object alive that the address names.
            drop(held);
            // Fails only if the caller is gone.
            let _ = notifier.answer_call(id, connected.into());
        });
        Ok(CallProgress::Work(BlockingWork { job, pipe: None }))
    }

    /// Reads a bind. A bind without a path is left to the kernel-enforced layer, or binds a server at once.
    pub(super) fn read_bind(&self, caller: &CallingThread) -> CallResult<ControlFlow<CallProgress, BrokeredCall>> {
        let address = read_address(caller)?;
        let socket = caller.duplicate_descriptor(caller.int_argument(0))?;
        let domain = socket_domain(&socket)?;
        let path = match parse_peer(&address, domain) {
            SocketPeer::Path(path) => path,
            _ if self.has_own_network() || domain == AddressFamily::UNIX => {
                return Ok(ControlFlow::Break(CallProgress::CONTINUE));
            }
            SocketPeer::Internet(at) => {
                self.must_still_wait(caller)?;
                self.bind_server(&socket, choose_server_address(at, &address, &socket)?)?;
                return Ok(ControlFlow::Break(CallProgress::ZERO));
            }
            SocketPeer::Abstract(_) | SocketPeer::Other => return Err(no_server(b"a port of the kernel's choice")),
        };
        let mask = !self.mask_mode(caller, 0o7777)?;
        let resolved = self.resolve_name(caller, libc::AT_FDCWD, &path)?;
        Ok(ControlFlow::Continue(BrokeredCall::Bind { socket, resolved, mask }))
    }

    /// Binds a server of a run without a network namespace. Such a run serves only its own
    /// processes, on the loopback of the host.
    fn bind_server(&self, socket: &OwnedFd, at: SocketAddr) -> CallResult<()> {
        let is_of_system = (1..FIRST_PORT).contains(&at.port());
        if !at.ip().is_loopback() || is_of_system || socket_type(socket)? != SocketType::STREAM {
            return Err(no_server(at.to_string().as_bytes()));
        }
        let domain = socket_domain(socket)?;
        if at.port() != 0 {
            let bind = || actor::bind_socket(socket.as_fd(), &address_for(domain, at));
            return Ok(self.servers.retry_after_release(at.port(), bind)?);
        }
        for _ in 0..MAX_PORTS_TRIED {
            let port = free_port(at.ip(), is_served)?;
            match actor::bind_socket(socket.as_fd(), &address_for(domain, SocketAddr::new(at.ip(), port))) {
                Err(Errno::ADDRINUSE) => {}
                bound => return Ok(bound?),
            }
        }
        Err(Errno::ADDRINUSE.into())
    }

    /// Lets a socket listen on the caller's behalf: the kernel would look the descriptor up again,
    /// and it may be another socket by then.
    pub(super) fn listen_for_caller(&self, caller: &CallingThread) -> CallResult {
        let socket = caller.duplicate_descriptor(caller.int_argument(0))?;
        let is_unix = socket_domain(&socket)? == AddressFamily::UNIX;
        self.must_still_wait(caller)?;
        if is_unix || self.has_own_network() {
            rustix::net::listen(&socket, caller.int_argument(1))?;
            return Ok(CallProgress::ZERO);
        }
        match self.servers.listen_on_loopback(socket.as_fd(), caller.int_argument(1)) {
            Ok(()) => Ok(CallProgress::ZERO),
            Err(Errno::ACCESS) => Err(no_server(b"a port of the kernel's choice")),
            Err(errno) => Err(errno.into()),
        }
    }

    /// Binds on the caller's behalf, and holds the new socket. In a private tree of the
    /// kernel-enforced layer the kernel carries the call out.
    pub(super) fn bind_for_caller(&self, socket: &OwnedFd, resolved: &ResolvedName, mask: Mode) -> CallResult {
        if resolved.special || resolved.open_nofollow().is_ok() {
            return Err(Errno::ADDRINUSE.into());
        }
        let path = &resolved.path;
        let native = || native_name_access(&resolved.directory);
        let verdict = self.permit_or_fail(DeniedOperation::Bind, path, native)?;
        if verdict == PermissionVerdict::Private && self.powers.kernel_allows(path) {
            return Ok(CallProgress::CONTINUE);
        }
        if !self.bound.has_room() {
            let rule = format!("no more than {MAX_BOUND_SOCKETS} sockets with a path at a time");
            return Err(refuse_always(DeniedOperation::Bind, path, rule));
        }
        let bind = |directory: BorrowedFd<'_>, _: &CStr| self.bind_at(socket, resolved, directory);
        let new = self.make_at(resolved, DeniedOperation::Bind, bind)?;
        // If the directory was moved meanwhile, the socket is elsewhere and is not held.
        let made = resolve::open_component(new.directory.as_fd(), &resolved.name).map_err(|_| Errno::ACCESS)?;
        let stat = fstat(&made)?;
        if FileType::from_raw_mode(stat.st_mode) != FileType::Socket {
            return Err(Errno::ACCESS.into());
        }
        // The umask of the broker is 0. No process can connect before the socket listens.
        let mode = Mode::from_raw_mode(stat.st_mode) - mask;
        actor::change_mode(made.as_fd(), mode.bits())?;
        self.bound.add_socket(made)?;
        Ok(CallProgress::ZERO)
    }

    /// Binds to `resolved`. If the supervisor sees the same directory at its path, the address is that
    /// path without links, so that getsockname(2) returns it. Else the address leads through the
    /// held descriptor. Another run may change the path meanwhile, so Landlock lets the call make a
    /// socket in that directory only.
    fn bind_at(&self, socket: &OwnedFd, resolved: &ResolvedName, held: BorrowedFd<'_>) -> Result<(), Errno> {
        let own = own_directory(&resolved.directory, false).ok().filter(|_| !self.powers.is_staged(&resolved.path));
        match own {
            Some(own) if resolved.path.len() <= MAX_UNIX_PATH_BYTES => {
                bind_within(socket.as_fd(), &unix_address(&resolved.path), own.as_fd())
            }
            _ => {
                let by_descriptor = resolve::DescriptorPath::new(held);
                let path = [by_descriptor.as_c_str().to_bytes(), b"/", resolved.name.as_bytes()].concat();
                actor::bind_socket(socket.as_fd(), &unix_address(&path))
            }
        }
    }
}

/// Returns the address for a server that asks for `at`. The unspecified address of a dual-stack
/// socket becomes the IPv4 loopback.
fn choose_server_address(at: SocketAddr, address: &[u8], socket: &OwnedFd) -> Result<SocketAddr, Errno> {
    let is_any = address.get(8..24) == Some(&[0; 16]) && socket_domain(socket)? == AddressFamily::INET6;
    let takes_both = is_any && !ipv6_v6only(socket)?;
    Ok(if takes_both { SocketAddr::new(Ipv4Addr::LOCALHOST.into(), at.port()) } else { at })
}

fn no_server(object: &[u8]) -> CallFailure {
    let rule = format!(
        "without a network of its own (level restricted) a run serves on the loopback alone, from port {FIRST_PORT} on, over TCP"
    );
    refuse_always(DeniedOperation::Bind, object, rule)
}

/// Binds to an address that must lead into `directory`, on a thread that may make sockets only there.
fn bind_within(socket: BorrowedFd<'_>, address: &[u8], directory: BorrowedFd<'_>) -> Result<(), Errno> {
    let rules = Ruleset::new(FIRST_LANDLOCK_ABI, access::MAKE_SOCK, 0, 0)?;
    rules.allow_beneath(directory, access::MAKE_SOCK)?;
    let bind = || {
        set_no_new_privs(true)?;
        rules.restrict_self()?;
        actor::bind_socket(socket, address)
    };
    std::thread::scope(|scope| {
        let thread = std::thread::Builder::new().name("bind".to_owned()).spawn_scoped(scope, bind);
        thread.map_err(|_| Errno::AGAIN)?.join().unwrap_or(Err(Errno::IO))
    })
}

fn read_address(caller: &CallingThread) -> Result<Vec<u8>, Errno> {
    match u64::from(caller.unsigned_argument(2)) {
        length @ 0..=MAX_ADDRESS_BYTES => caller.read_bytes(1, length as usize),
        _ => Err(Errno::INVAL),
    }
}

/// Returns the peer that an address names for a socket of `domain`.
fn parse_peer(address: &[u8], domain: AddressFamily) -> SocketPeer {
    if bytes_at(address, 0).map(u16::from_ne_bytes) != Some(domain.as_raw()) {
        return SocketPeer::Other;
    }
    match domain {
        AddressFamily::UNIX => {
            let path = &address[UNIX_PATH_OFFSET..];
            let end = path.iter().position(|b| *b == 0).unwrap_or(path.len());
            match path.first() {
                None => SocketPeer::Other,
                Some(0) => SocketPeer::Abstract(path[1..].to_vec()),
                Some(_) => CString::new(&path[..end]).map_or(SocketPeer::Other, SocketPeer::Path),
            }
        }
        AddressFamily::INET => parse_internet_peer(bytes_at::<4>(address, 4).map(IpAddr::from), address),
        AddressFamily::INET6 => parse_internet_peer(bytes_at::<16>(address, 8).map(IpAddr::from), address),
        _ => SocketPeer::Other,
    }
}

fn parse_internet_peer(host: Option<IpAddr>, address: &[u8]) -> SocketPeer {
    let port = bytes_at(address, 2).map(u16::from_be_bytes);
    host.zip(port).map_or(SocketPeer::Other, |(host, port)| SocketPeer::Internet(canonical_address(host, port)))
}

fn bytes_at<const N: usize>(address: &[u8], start: usize) -> Option<[u8; N]> {
    address.get(start..)?.first_chunk().copied()
}

/// Returns a unix address that leads to exactly the object of `fd`.
fn held_address(fd: &OwnedFd) -> Vec<u8> {
    unix_address(resolve::DescriptorPath::new(fd.as_fd()).as_c_str().to_bytes())
}

fn unix_address(path: &[u8]) -> Vec<u8> {
    [&AddressFamily::UNIX.as_raw().to_ne_bytes(), path, b"\0"].concat()
}

/// Returns the refusal of an internet socket that is not TCP.
pub(super) fn no_internet(caller: &CallingThread) -> RefusedOperation {
    let family = if caller.int_argument(0) == libc::AF_INET { "AF_INET" } else { "AF_INET6" };
    let refusal = PermissionRefusal::without_grant("only TCP can leave the sandbox at level restricted");
    RefusedOperation::new(DeniedOperation::Socket, family, DenialLayer::Broker, refusal)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(address: &[u8], domain: AddressFamily, expected: &str) {
        let shown = match parse_peer(address, domain) {
            SocketPeer::Path(path) => format!("path {}", path.to_string_lossy()),
            SocketPeer::Abstract(name) => format!("abstract {}", name.len()),
            SocketPeer::Internet(dialled) => dialled.to_string(),
            SocketPeer::Other => "other".to_owned(),
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
        six.extend(std::net::Ipv6Addr::LOCALHOST.octets());
        check(&six, AddressFamily::INET6, "[::1]:443");
        check(&[0], AddressFamily::INET, "other");
        check(&[0, 0], AddressFamily::INET, "other");
    }
}
