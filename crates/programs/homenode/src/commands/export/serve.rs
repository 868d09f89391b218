//! HTTP for one resource, on this machine only.
//!
//! **Problem.** Every local user can connect: to ask slowly, never to end, or very often. None of
//! them may keep others from an answer, or make the exporter large.
//!
//! **Approach.** One thread polls all connections, and none of them blocks. A connection has one
//! request and one answer and is then closed. A request is at most [`LONGEST_REQUEST`] long and a
//! connection lives for [`PATIENCE`]. There are at most [`MOST`]; one more takes the place of the
//! oldest. All who ask in a window get the same text, so neither memory nor time depends on how
//! many ask.
//!
//! **Limits.** HTTP/1.1 `GET` and `HEAD`, without keep-alive and without compression.

use std::collections::{BTreeMap, VecDeque};
use std::fs::File;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{AtFlags, FileType, Mode, OFlags};
use rustix::io::{Errno, ioctl_fionbio};
use rustix::net::{Shutdown, SocketFlags, accept_with, shutdown};

use super::Listen;
use super::text::MEDIA_TYPE;
use crate::exit::{Exit, Failure};

/// Longest request, bytes: Prometheus sends some 300.
const LONGEST_REQUEST: usize = 8192;
/// Time from connecting to the end of the answer.
const PATIENCE: Duration = Duration::from_secs(10);
/// Connections at once.
const MOST: usize = 100;
/// Bytes of answers that are kept at once.
const MOST_UNREAD: usize = 8 << 20;
/// How soon a request to stop is noticed.
const TICK: Duration = Duration::from_millis(200);

/// The metrics, or why there are none. All who ask in a window share one text.
type Metrics<'a> = dyn FnMut() -> Result<Arc<str>, String> + 'a;

/// An answer: its head, and its text if that is asked for.
struct Answer {
    head: Vec<u8>,
    text: Arc<str>,
}

impl Answer {
    fn new(status: &str, media_type: &str, text: Arc<str>, body: bool) -> Self {
        let allow = if status.starts_with("405") { "Allow: GET, HEAD\r\n" } else { "" };
        let length = text.len();
        let head = format!(
            "HTTP/1.1 {status}\r\nContent-Type: {media_type}\r\nContent-Length: {length}\r\n{allow}\
             X-Content-Type-Options: nosniff\r\nConnection: close\r\n\r\n"
        );
        Self { head: head.into_bytes(), text: if body { text } else { Arc::from("") } }
    }

    /// What is left after so many bytes; empty at the end.
    fn rest(&self, sent: usize) -> &[u8] {
        let head = self.head.get(sent..).filter(|head| !head.is_empty());
        let text = || self.text.as_bytes().get(sent - self.head.len()..).unwrap_or_default();
        head.unwrap_or_else(text)
    }
}

/// How far a connection is.
enum State {
    /// So much of the request has come.
    Asks(Vec<u8>),
    /// The answer, and how much of it has gone.
    Answered(Answer, usize),
    /// All was said. What is still to come is read and thrown away: closing before that would take
    /// the answer back.
    Ends,
}

struct Connection {
    /// A socket of either kind: to read from and to write to. Writing to a client that has gone is
    /// an error, as Rust programs ignore SIGPIPE.
    stream: File,
    since: Instant,
    state: State,
    /// It may ask for any host: no browser comes by a Unix socket.
    any_host: bool,
}

impl Connection {
    fn wants(&self) -> PollFlags {
        if matches!(self.state, State::Answered(..)) { PollFlags::OUT } else { PollFlags::IN }
    }

    /// The text that is kept for it.
    fn unread(&self) -> Option<&Arc<str>> {
        if let State::Answered(answer, _) = &self.state { Some(&answer.text) } else { None }
    }

    /// Goes on as far as it can without waiting; false once it is over.
    fn go_on(&mut self, metrics: &mut Metrics<'_>) -> bool {
        loop {
            match self.step(metrics) {
                Ok(true) => {}
                Ok(false) => return false,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return error.kind() == ErrorKind::WouldBlock,
            }
        }
    }

    fn step(&mut self, metrics: &mut Metrics<'_>) -> io::Result<bool> {
        let mut buffer = [0; 2048];
        match &mut self.state {
            State::Asks(request) => {
                let n = self.stream.read(&mut buffer)?;
                request.extend(buffer.iter().take(n));
                if let Some(answer) = answer(request, self.any_host, metrics) {
                    self.state = State::Answered(answer, 0);
                } else if n == 0 {
                    return Ok(false);
                }
            }
            State::Answered(answer, sent) => {
                *sent += self.stream.write(answer.rest(*sent))?;
                if answer.rest(*sent).is_empty() {
                    shutdown(&self.stream, Shutdown::Write)?;
                    self.state = State::Ends;
                }
            }
            // One piece at a time: somebody may send for ever.
            State::Ends => {
                return if self.stream.read(&mut buffer)? > 0 { Err(ErrorKind::WouldBlock.into()) } else { Ok(false) };
            }
        }
        Ok(true)
    }
}

/// Whether a `Host` is this machine. A web page can have a name of its own lead here.
fn is_local(host: &str) -> bool {
    let host = host.trim();
    let address = host.parse::<SocketAddr>().map(|address| address.ip());
    let address = address.or_else(|_| host.trim_start_matches('[').trim_end_matches(']').parse::<IpAddr>());
    let name = host.rsplit_once(':').map_or(host, |(name, _)| name);
    address.is_ok_and(|address| address.is_loopback()) || name.eq_ignore_ascii_case("localhost")
}

/// The answer to a request, if that is complete or too long.
fn answer(request: &[u8], any_host: bool, metrics: &mut Metrics<'_>) -> Option<Answer> {
    let plain = |status, text: &str, body| Answer::new(status, "text/plain; charset=utf-8", text.into(), body);
    let complete = request.windows(4).any(|w| w == b"\r\n\r\n") || request.windows(2).any(|w| w == b"\n\n");
    if !complete {
        let long = request.len() > LONGEST_REQUEST;
        return long.then(|| plain("431 Request Header Fields Too Large", "The request is too long.\n", true));
    }
    let text = String::from_utf8_lossy(request);
    let mut lines = text.lines();
    let mut words = lines.next().unwrap_or_default().split(' ');
    let (method, target, version) = (words.next(), words.next().unwrap_or_default(), words.next());
    if !version.is_some_and(|version| version.starts_with("HTTP/1.")) {
        return Some(plain("400 Bad Request", "Not a request of HTTP/1.1.\n", true));
    }
    let body = match method {
        Some("GET") => true,
        Some("HEAD") => false,
        _ => return Some(plain("405 Method Not Allowed", "Only GET and HEAD.\n", true)),
    };
    let host = |line: &str| {
        let (name, value) = line.split_once(':')?;
        name.eq_ignore_ascii_case("host").then(|| value.trim().to_owned())
    };
    // To a proxy a client says the whole address, and what it says there counts.
    let absolute = target.split_at_checked(7).filter(|(scheme, _)| scheme.eq_ignore_ascii_case("http://"));
    let absolute = absolute.map(|(_, rest)| rest.split_at(rest.find(['/', '?']).unwrap_or(rest.len())));
    let hosts: Vec<String> = match absolute {
        Some((host, _)) => vec![host.to_owned()],
        None => lines.filter_map(host).collect(),
    };
    if !any_host && !hosts.iter().all(|host| is_local(host)) {
        return Some(plain("403 Forbidden", "Only for this machine: ask for localhost.\n", true));
    }
    let path = absolute.map_or(target, |(_, path)| path);
    Some(match path.split('?').next() {
        Some("/metrics") => match metrics() {
            Ok(text) => Answer::new("200 OK", MEDIA_TYPE, text, body),
            Err(why) => plain("500 Internal Server Error", &(why + "\n"), body),
        },
        Some("/" | "") => plain("200 OK", "homenode export: /metrics\n", body),
        _ => plain("404 Not Found", "There is /metrics only.\n", body),
    })
}

pub struct Server {
    listener: OwnedFd,
    /// Where, as a client says it.
    address: String,
    /// A Unix socket's path, which is removed at the end.
    path: Option<PathBuf>,
}

impl Server {
    /// Begins to listen.
    ///
    /// # Errors
    ///
    /// Somebody else listens there, or it is not permitted.
    pub fn open(at: &Listen) -> Result<Self, Failure> {
        let (what, opened) = match at {
            Listen::Tcp(address) => (address.to_string(), Self::tcp(address)),
            Listen::Unix(path) => (path.display().to_string(), Self::unix(path)),
        };
        let ready = opened.and_then(|server| {
            ioctl_fionbio(&server.listener, true)?;
            Ok(server)
        });
        ready.map_err(|e| {
            let exit = if e.kind() == ErrorKind::AddrInUse { Exit::Busy } else { Exit::Io };
            Failure::from_error(exit, format!("cannot listen on {what}"), &e).exiting(exit)
        })
    }

    fn tcp(address: &SocketAddr) -> io::Result<Self> {
        let listener = TcpListener::bind(address)?;
        let address = format!("http://{}/metrics", listener.local_addr()?);
        Ok(Self { listener: listener.into(), address, path: None })
    }

    fn unix(path: &Path) -> io::Result<Self> {
        let listener = bind(path)?.into();
        Ok(Self { listener, address: format!("unix:{}", path.display()), path: Some(path.to_owned()) })
    }

    /// Where it listens, as a client says it.
    pub fn address(&self) -> &str {
        &self.address
    }

    /// Answers until it is time to stop.
    ///
    /// # Errors
    ///
    /// The kernel cannot wait for connections.
    pub fn run(&self, stop: &dyn Fn() -> bool, metrics: &mut Metrics<'_>) -> Result<(), Failure> {
        // By rising age.
        let mut connections: VecDeque<Connection> = VecDeque::new();
        let tick = Timespec { tv_sec: 0, tv_nsec: TICK.subsec_nanos().into() };
        while !stop() {
            let ready: Vec<bool> = {
                let mut fds = vec![PollFd::new(&self.listener, PollFlags::IN)];
                fds.extend(connections.iter().map(|c| PollFd::from_borrowed_fd(c.stream.as_fd(), c.wants())));
                match poll(&mut fds, Some(&tick)) {
                    Ok(_) | Err(Errno::INTR) => {}
                    Err(e) => return Err(Failure::from_error(Exit::Unsupported, "cannot wait for connections", &e)),
                }
                fds.iter().map(|fd| !fd.revents().is_empty()).collect()
            };
            let mut ready = ready.into_iter();
            let knocks = ready.next().unwrap_or(false);
            connections.retain_mut(|connection| {
                let over = connection.since.elapsed() > PATIENCE;
                let ready = ready.next().unwrap_or(false);
                !over && (!ready || connection.go_on(metrics))
            });
            // Those who do not read their answers must not make the exporter large.
            while unread(&connections) > MOST_UNREAD {
                connections.pop_front();
            }
            if knocks {
                self.accept(&mut connections);
            }
        }
        Ok(())
    }

    /// Takes those who wait, a few at a time: others have waited longer.
    fn accept(&self, connections: &mut VecDeque<Connection>) {
        for _ in 0..MOST / 4 {
            match accept_with(&self.listener, SocketFlags::NONBLOCK | SocketFlags::CLOEXEC) {
                Ok(stream) => {
                    if connections.len() >= MOST {
                        connections.pop_front();
                    }
                    let (stream, state, any_host) = (stream.into(), State::Asks(Vec::new()), self.path.is_some());
                    connections.push_back(Connection { stream, since: Instant::now(), state, any_host });
                }
                Err(Errno::INTR | Errno::CONNABORTED) => {}
                Err(Errno::AGAIN) => return,
                Err(error) => {
                    // No descriptors, or no memory. It would come back at once.
                    tracing::warn!("cannot accept a connection: {error}");
                    connections.pop_front();
                    std::thread::sleep(TICK);
                    return;
                }
            }
        }
    }
}

/// Bytes of the texts that are kept for connections.
fn unread(connections: &VecDeque<Connection>) -> usize {
    let texts = connections.iter().filter_map(Connection::unread);
    let texts: BTreeMap<*const u8, usize> = texts.map(|text| (text.as_ptr(), text.len())).collect();
    texts.values().sum()
}

impl Drop for Server {
    fn drop(&mut self) {
        // Its directory may be gone.
        let _ = self.path.as_ref().map(std::fs::remove_file);
    }
}

/// A socket that nobody listens on any more is in the way of a new one.
fn bind(path: &Path) -> io::Result<UnixListener> {
    match bind_for_all(path) {
        Err(error) if error.kind() == ErrorKind::AddrInUse => match UnixStream::connect(path) {
            // A file that is no socket refuses, too.
            Err(refused) if refused.kind() == ErrorKind::ConnectionRefused && removed(path)? => bind_for_all(path),
            _ => Err(error),
        },
        bound => bound,
    }
}

/// A socket that everybody may connect to: its directory decides who may ask. It is made like that,
/// because a path may lead elsewhere a moment later. No other thread makes files meanwhile.
fn bind_for_all(path: &Path) -> io::Result<UnixListener> {
    let umask = rustix::process::umask(Mode::from_raw_mode(0o111));
    let bound = UnixListener::bind(path);
    rustix::process::umask(umask);
    bound
}

/// Removes what is there if it is a socket: in the directory in which it was looked at.
fn removed(path: &Path) -> io::Result<bool> {
    let (parent, name) = (path.parent().unwrap_or(path), path.file_name().unwrap_or_default());
    let parent = if parent.as_os_str().is_empty() { Path::new(".") } else { parent };
    let dir = rustix::fs::open(parent, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
    let found = rustix::fs::statat(&dir, name, AtFlags::SYMLINK_NOFOLLOW)?;
    let socket = FileType::from_raw_mode(found.st_mode) == FileType::Socket;
    if socket {
        rustix::fs::unlinkat(&dir, name, AtFlags::empty())?;
    }
    Ok(socket)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asked(request: &[u8]) -> Option<String> {
        answer(request, false, &mut || Ok("homenode 1\n".into()))
            .map(|answer| String::from_utf8(answer.head).unwrap() + &answer.text)
    }

    /// The mode was set by path after the socket was made, where that may have led elsewhere.
    #[test]
    fn a_socket_is_made_for_all_and_takes_the_place_of_a_dead_one_only() {
        let dir = tempfile::tempdir().unwrap();
        let (path, file) = (dir.path().join("socket"), dir.path().join("file"));
        for _ in 0..2 {
            drop(bind(&path).unwrap());
            let mode = rustix::fs::lstat(&path).unwrap().st_mode;
            assert_eq!((FileType::from_raw_mode(mode), mode & 0o777), (FileType::Socket, 0o666));
        }
        let _listens = bind(&path).unwrap();
        assert_eq!(bind(&path).unwrap_err().kind(), ErrorKind::AddrInUse);
        std::fs::write(&file, "x").unwrap();
        assert_eq!(bind(&file).unwrap_err().kind(), ErrorKind::AddrInUse);
        assert_eq!(std::fs::read_to_string(&file).unwrap(), "x");
    }

    #[test]
    fn one_request_has_one_answer() {
        let first = |request: &[u8]| asked(request).unwrap().lines().next().unwrap().to_owned();
        assert_eq!(first(b"GET /metrics HTTP/1.1\r\nHost: localhost:9951\r\n\r\n"), "HTTP/1.1 200 OK");
        assert_eq!(first(b"GET /metrics?x=1 HTTP/1.0\n\n"), "HTTP/1.1 200 OK");
        assert_eq!(first(b"GET /metrics HTTP/1.1\r\nHost: [::1]:9951\r\n\r\n"), "HTTP/1.1 200 OK");
        for host in ["evil.example", "evil.example:9951", "127.0.0.1.evil.example", "192.0.2.1", ""] {
            let request = format!("GET /metrics HTTP/1.1\r\nhost: {host}\r\n\r\n");
            assert_eq!(first(request.as_bytes()), "HTTP/1.1 403 Forbidden", "{host}");
        }
        // As a proxy asks; the host is that of the address.
        for (target, status) in [
            ("http://localhost:9951/metrics", "200 OK"),
            ("HTTP://127.0.0.1/metrics?x=http://evil.example/", "200 OK"),
            ("http://localhost", "200 OK"),
            ("http://evil.example/metrics", "403 Forbidden"),
            ("http://localhost@evil.example/metrics", "403 Forbidden"),
            ("http:///metrics", "403 Forbidden"),
            ("http://localhost/x", "404 Not Found"),
            ("https://localhost/metrics", "404 Not Found"),
        ] {
            let request = format!("GET {target} HTTP/1.1\r\nHost: localhost\r\n\r\n");
            assert_eq!(first(request.as_bytes()), format!("HTTP/1.1 {status}"), "{target}");
        }
        assert_eq!(first(b"GET /etc/passwd HTTP/1.1\r\n\r\n"), "HTTP/1.1 404 Not Found");
        assert_eq!(first(b"POST /metrics HTTP/1.1\r\n\r\n"), "HTTP/1.1 405 Method Not Allowed");
        assert_eq!(first(b"\xff\xfe\r\n\r\n"), "HTTP/1.1 400 Bad Request");
        assert_eq!(first(b"GET /metrics\r\n\r\n"), "HTTP/1.1 400 Bad Request");
        assert_eq!(first(&vec![b'a'; LONGEST_REQUEST + 1]), "HTTP/1.1 431 Request Header Fields Too Large");
        for part in [b"".as_slice(), b"GET /metrics HTTP/1.1\r\n", b"GET /metrics HTTP/1.1\r\nHost: x\r\n"] {
            assert_eq!(asked(part), None);
        }
    }

    #[test]
    fn a_head_has_the_length_and_no_text() {
        let head = asked(b"HEAD /metrics HTTP/1.1\r\n\r\n").unwrap();
        // Prometheus 3 takes no other type.
        assert!(head.contains("Content-Type: text/plain; version=0.0.4; charset=utf-8\r\n"), "{head}");
        assert!(head.contains("Content-Length: 11\r\n") && head.ends_with("\r\n\r\n"), "{head}");
    }
}
