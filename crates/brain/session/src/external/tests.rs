use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};

use placement::NodeLoad;
use rand::rngs::ChaCha8Rng;
use rand::{RngExt, SeedableRng};
use topology::NodeId;

use super::program::{Behind, Here, User};
use super::*;

const FIRST: &str = r#"echo '{"homenode":1,"name":"mine"}'"#;

fn start(script: &str, limit: Duration) -> Result<External, String> {
    start_as(None, script, limit)
}

fn start_as(user: Option<User>, script: &str, limit: Duration) -> Result<External, String> {
    let dir = tempfile::tempdir().unwrap();
    start_in(dir.path(), user, script, limit)
}

/// The script stays there, to be started again.
fn start_in(dir: &Path, user: Option<User>, script: &str, limit: Duration) -> Result<External, String> {
    fs::set_permissions(dir, fs::Permissions::from_mode(0o755)).unwrap();
    let path = dir.join("policy");
    fs::write(&path, format!("#!/bin/sh\n{script}\n")).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    External::start("exec:", Arc::new(Here::new(path.to_str().unwrap(), user)), 7, Patience::Waits(limit))
}

fn window() -> Snapshot {
    let node = |id, cpus: &[u32]| NodeLoad { id: NodeId(id), cpus: cpus.to_vec(), ..NodeLoad::default() };
    let thread = |tid, node| Thread {
        tid,
        pid: 100,
        node: NodeId(node),
        allowed_nodes: vec![NodeId(0), NodeId(1), NodeId(2)],
        ..Thread::default()
    };
    let pinned = Thread { pinned: Some("has an affinity of its own".to_owned()), ..thread(3, 1) };
    Snapshot {
        version: placement::snapshot::VERSION,
        window_s: 1.0,
        nodes: vec![node(0, &[0]), node(1, &[1]), node(2, &[])],
        threads: vec![thread(1, 0), thread(2, 1), pinned],
        ..Snapshot::default()
    }
}

/// What a program decides in one window, with this line as its answer.
fn decided(answer: &str) -> Plan {
    let script = format!("{FIRST}; read hello; while read window; do echo '{answer}'; done");
    let mut policy = start(&script, ANSWER).unwrap();
    let window = window();
    policy.decide(&window.topology(), &window)
}

fn moving(tid: u32, from: u32, to: u32) -> String {
    format!(r#"{{"kind":"thread","tid":{tid},"pid":100,"from":{from},"to":{to},"reason":"external","why":"so"}}"#)
}

#[test]
fn a_program_decides_from_what_it_reads() {
    let script = r#"
        echo '{"homenode":1,"name":"mine","period_s":2,"moves_files":true,"wants":["mapped"]}'
        read hello
        case $hello in '{"homenode":1,"topology":{"nodes":['*'"seed":7}') ;; *) exit 1 ;; esac
        while read window; do
            case $window in '{"version":2,'*'"tid":2'*) ;; *) exit 1 ;; esac
            echo '{"version":2,"policy":"any","moves":[{"kind":"thread","tid":2,"pid":100,"from":1,"to":0,"reason":"external","why":"so"}]}'
        done"#;
    let mut policy = start(script, ANSWER).unwrap();
    assert_eq!((policy.name(), policy.period_s()), ("exec:mine", 2.0));
    let traits = policy.traits();
    assert!(traits.moves_files && !traits.moves_processes && traits.wants_mapped == Wish::IfPossible);
    let window = window();
    for _ in 0..3 {
        let plan = policy.decide(&window.topology(), &window);
        assert_eq!((plan.policy.as_str(), plan.moves.len(), plan.notes.len()), ("exec:mine", 1, 0), "{plan:?}");
        assert_eq!((plan.moves[0].tid(), plan.moves[0].to), (Some(2), NodeId(0)));
        assert_eq!(
            (plan.moves[0].reason, plan.moves[0].why.to_string()),
            (placement::Reason::External, "so".to_owned())
        );
    }
    assert_eq!(policy.trouble(), None);
}

#[test]
fn a_program_that_lies_is_left_out_of() {
    let wrong = [
        (moving(9, 1, 0), "thread 9: not in the window"),
        (moving(2, 0, 1), "thread 2: it is elsewhere"),
        (moving(2, 1, 1), "thread 2: it is there"),
        (moving(2, 1, 2), "thread 2: it may not run there"),
        (moving(2, 1, 7), "thread 2: no such node"),
        (moving(3, 1, 0), "thread 3: pinned"),
        (moving(2, 1, 0).replace("100", "101"), "thread 2: another one"),
        (moving(2, 1, 0).replace(r#""from""#, r#""start_ns":5,"from""#), "thread 2: another one"),
        (
            r#"{"kind":"process","pid":100,"from":1,"to":0,"reason":"external","why":""}"#.to_owned(),
            "process 100: it did not announce that it moves processes",
        ),
        (
            r#"{"kind":"file","file":"8:1:9","from":1,"to":0,"reason":"external","why":""}"#.to_owned(),
            "file 8:1:9: it did not announce that it moves files",
        ),
    ];
    for (wrong, why) in wrong {
        let right = moving(1, 0, 1);
        let plan = decided(&format!(r#"{{"version":2,"policy":"","moves":[{wrong},{right}]}}"#));
        let moved: Vec<_> = plan.moves.iter().filter_map(Move::tid).collect();
        let note = format!("left out of the program's plan: 1 of its moves ({why})");
        assert_eq!((moved, plan.notes), (vec![1], vec![note]), "{wrong}");
    }
    let twice = format!(r#"{{"version":2,"policy":"","moves":[{0},{0}]}}"#, moving(2, 1, 0));
    assert_eq!(decided(&twice).notes, ["left out of the program's plan: 1 of its moves (thread 2: moved twice)"]);
    let long = "x".repeat(5000);
    let words = format!(
        r#"{{"version":2,"policy":"","moves":[],"notes":["{long}"],"declined":[{{"tid":1,"reason":"{long}","why":""}}]}}"#
    );
    let plan = decided(&words);
    assert_eq!((plan.notes[0].len(), plan.declined[0].reason.len()), (SENTENCE, SENTENCE));
}

/// Each is ended, and nothing moves from then on.
#[test]
fn a_program_that_ends_hangs_or_floods_decides_nothing() {
    let short = Duration::from_millis(300);
    let cases = [
        ("exit 0", "it ended"),
        ("read a; read b; exit 3", "it ended"),
        ("read a; read b; sleep 3600", "no answer within 0.3 s"),
        ("sleep 3600 & read a; wait", "no answer within 0.3 s"),
        ("read a; read b; yes | tr -d '\\n'", "a line above 16777216 bytes"),
        ("echo '{}'; read a; read b; sleep 3600", "it wrote a line that nobody asked for"),
        (
            "read a; read b; echo '{\"version\":1,\"policy\":\"\",\"moves\":[]}'; read c",
            "its plan has version 1, not 2",
        ),
        ("read a; read b; echo nonsense; read c", "its plan: expected"),
        ("read a; read b; printf '\\377\\n'; read c", "no UTF-8"),
    ];
    for (script, why) in cases {
        let limit = if why.starts_with("no answer") { short } else { ANSWER };
        let mut policy = start(&format!("{FIRST}; {script}"), limit).unwrap();
        // What it writes at once is there.
        std::thread::sleep(Duration::from_millis(100));
        let window = window();
        for _ in 0..2 {
            let plan = policy.decide(&window.topology(), &window);
            assert!(
                plan.moves.is_empty() && plan.notes[0].starts_with(&format!("exec:mine: {why}")),
                "{script}: {plan:?}"
            );
            assert!(policy.trouble().is_some());
        }
    }
}

/// The same script, in a loop that does not wait.
fn in_a_loop(script: &str) -> External {
    let mut policy = start(script, ANSWER).unwrap();
    policy.patience = Patience::Window;
    policy
}

/// What it decides in windows of a tenth of a second: moves and notes.
fn windows(policy: &mut External, count: usize) -> Vec<(usize, Vec<String>)> {
    let window = window();
    let mut decide = || {
        let plan = policy.decide(&window.topology(), &window);
        std::thread::sleep(Duration::from_millis(100));
        (plan.moves.len(), plan.notes)
    };
    (0..count).map(|_| decide()).collect()
}

fn moves_one() -> String {
    format!(r#"echo '{{"version":2,"policy":"","moves":[{}]}}'"#, moving(2, 1, 0))
}

#[test]
fn a_loop_gets_the_plan_of_the_window_before() {
    let mut policy = in_a_loop(&format!("{FIRST}; read hello; while read window; do {}; done", moves_one()));
    let said = windows(&mut policy, 3);
    assert_eq!(said, [(0, vec![]), (1, vec![]), (1, vec![])]);
}

#[test]
fn three_late_answers_end_the_policy_and_a_loop_never_waits() {
    let late = |n| format!("exec:mine: no answer within its window ({n} of 3)");
    let over = "exec:mine: no answer in time in 3 windows".to_owned();
    let mut hangs = in_a_loop(&format!("{FIRST}; read hello; sleep 3600"));
    let said = windows(&mut hangs, 5);
    assert_eq!(said[1..4], [(0, vec![late(1)]), (0, vec![late(2)]), (0, vec![over.clone()])]);
    // Told once, and nothing moves.
    assert_eq!((said[4].clone(), hangs.trouble()), ((0, vec![]), Some(over.as_str())));
    // One answer in time, and all is well again.
    let first = format!("{FIRST}; read hello; read window; sleep 0.15; {}", moves_one());
    let mut slow = in_a_loop(&format!("{first}; while read window; do {}; done", moves_one()));
    let said = windows(&mut slow, 4);
    let nothing = "exec:mine: its answer came too late and counts for nothing".to_owned();
    assert_eq!(said[1..], [(0, vec![late(1)]), (0, vec![nothing]), (1, vec![])]);
}

#[test]
fn a_program_that_ends_in_a_loop_is_started_again_three_times() {
    let dir = tempfile::tempdir().unwrap();
    let mut policy = start_in(dir.path(), None, &format!("{FIRST}; read hello; read window; exit 0"), ANSWER).unwrap();
    policy.patience = Patience::Window;
    let said = windows(&mut policy, 12);
    let again = said.iter().filter(|(_, notes)| *notes == ["exec:mine: it ended; it is started again"]).count();
    assert_eq!((again, policy.trouble()), (3, Some("exec:mine: it ended")), "{said:?}");
    assert!(said.iter().all(|(moves, _)| *moves == 0));
}

#[test]
fn a_program_behind_a_socket_decides_and_is_let_go() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("policy.sock");
    assert!(Behind::new(path.to_str().unwrap()).open().err().unwrap().contains("policy.sock: No such file"));
    let listener = std::os::unix::net::UnixListener::bind(&path).unwrap();
    let served = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        stream.write_all(b"{\"homenode\":1,\"name\":\"mine\"}\n").unwrap();
        let lines = BufReader::new(stream.try_clone().unwrap()).lines();
        for line in lines.map_while(Result::ok).skip(1) {
            assert!(line.starts_with("{\"version\":2"));
            stream.write_all(b"{\"version\":2,\"policy\":\"\",\"moves\":[]}\n").unwrap();
        }
    });
    let behind = Arc::new(Behind::new(path.to_str().unwrap()));
    let mut policy = External::start("unix:", behind, 0, Patience::Waits(ANSWER)).unwrap();
    let window = window();
    assert_eq!(policy.decide(&window.topology(), &window), Plan::new("unix:mine"));
    drop(policy);
    served.join().unwrap();
}

/// Its end can be read from a socket, and is no speech.
#[test]
fn a_program_behind_a_socket_that_ended_is_asked_for_again() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("policy.sock");
    let listener = std::os::unix::net::UnixListener::bind(&path).unwrap();
    let served = std::thread::spawn(move || {
        for _ in 0..2 {
            let (mut stream, _) = listener.accept().unwrap();
            stream.write_all(b"{\"homenode\":1,\"name\":\"mine\"}\n").unwrap();
        }
    });
    let behind = Arc::new(Behind::new(path.to_str().unwrap()));
    let mut policy = External::start("unix:", behind, 0, Patience::Window).unwrap();
    std::thread::sleep(Duration::from_millis(100));
    let again = windows(&mut policy, 2).into_iter().flat_map(|(_, notes)| notes).collect::<Vec<_>>();
    assert_eq!(again, ["unix:mine: it ended; it is started again"]);
    drop(policy);
    served.join().unwrap();
}

/// As the user that it runs as, and whatever root may raise.
#[test]
fn a_program_has_limits_and_ends_with_homenode() {
    let script = format!(
        "{FIRST}; read hello; read window; printf '{{\"version\":2,\"policy\":\"\",\"moves\":[],\"notes\":[\"%s %s\"]}}\\n' \"$(ulimit -v)\" \"$(ulimit -c)\"; read end"
    );
    let user = rustix::process::geteuid().is_root().then_some(User { uid: 65_534, gid: 65_534 });
    let mut policy = start_as(user, &script, ANSWER).unwrap();
    let window = window();
    assert_eq!(policy.decide(&window.topology(), &window).notes, ["4194304 0"]);
}

/// It had the caller's, where it could write and read.
#[test]
fn a_program_has_no_terminal_and_gets_no_privileges() {
    let script = format!(
        r#"{FIRST}; read hello; read window; read stat < /proc/$$/stat; pid=$$; set -- $stat
        shift 5; nnp=$(sed -n 's/^NoNewPrivs:\t//p' /proc/self/status); errors=$(readlink /proc/$pid/fd/2)
        echo '{{"version":2,"policy":"","moves":[],"notes":["'$(($1 - pid)) $2 $nnp $errors'"]}}'; read end"#
    );
    let mut policy = start(&script, ANSWER).unwrap();
    let window = window();
    let notes = policy.decide(&window.topology(), &window).notes;
    // A session of its own, no terminal, no new privileges.
    let errors = notes[0].strip_prefix("0 0 1 ").expect(&notes[0]);
    assert!(errors.starts_with("pipe:") && fs::read_link("/proc/self/fd/2").unwrap() != Path::new(errors), "{errors}");
}

/// Who starts homenode may leave it a terminal as another descriptor.
#[test]
fn a_program_has_no_open_file_of_ours() {
    // The shell itself uses numbers from 10 on.
    let open = rustix::io::fcntl_dupfd_cloexec(fs::File::open("/dev/null").unwrap(), 200).unwrap();
    rustix::io::fcntl_setfd(&open, rustix::io::FdFlags::empty()).unwrap();
    let number = std::os::fd::AsRawFd::as_raw_fd(&open);
    let script = format!(
        r#"{FIRST}; read hello; read window; said=none; test -e /proc/$$/fd/{number} && said=open
        echo '{{"version":2,"policy":"","moves":[],"notes":["'$said'"]}}'; read end"#
    );
    let mut policy = start(&script, ANSWER).unwrap();
    let window = window();
    assert_eq!(policy.decide(&window.topology(), &window).notes, ["none"]);
}

/// It would read everybody's names, and decide.
#[test]
fn a_program_of_another_user_behind_a_socket_is_refused() {
    if !rustix::process::geteuid().is_root() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o777)).unwrap();
    let path = dir.path().join("policy.sock");
    let listen = "import socket, sys; s = socket.socket(socket.AF_UNIX); s.bind(sys.argv[1]); s.listen(); print(flush=True); sys.stdin.read()";
    let mut stranger = Command::new("/usr/bin/python3");
    stranger.args(["-c", listen]).arg(&path).uid(65_533).gid(65_533).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut stranger = stranger.spawn().unwrap();
    BufReader::new(stranger.stdout.take().unwrap()).read_line(&mut String::new()).unwrap();
    let opened = Behind::new(path.to_str().unwrap()).open();
    drop(stranger.stdin.take());
    stranger.wait().unwrap();
    let why = opened.err().unwrap();
    assert!(why.ends_with("policy.sock: user 65533 listens there, not root or the caller"), "{why}");
}

#[test]
fn a_program_that_does_not_announce_itself_is_refused() {
    for (script, why) in [
        ("echo nonsense", "its first line: expected"),
        (r#"echo '{"homenode":2,"name":"x"}'"#, "its first line: version 2 is not supported"),
        (r#"echo '{"homenode":1,"name":"a b"}'"#, "its first line: the name \"a b\""),
        (r#"echo '{"homenode":1,"name":"x","period_s":-1}'"#, "its first line: a period of -1 s"),
        (r#"echo '{"homenode":1,"name":"x","wants":["all"]}'"#, "its first line: unknown variant"),
        ("exit 1", "its first line: it ended"),
        ("sleep 3600", "its first line: no answer within 0.3 s"),
    ] {
        let limit = if why.contains("no answer") { Duration::from_millis(300) } else { ANSWER };
        let refused = start(script, limit).err().unwrap();
        assert!(refused.contains(why), "{refused}");
    }
    let refused = |command| Here::new(command, None).open().err().unwrap();
    assert!(refused("/nowhere/at/all").contains("/nowhere/at/all: No such file"));
    assert_eq!(refused("  "), "no program behind `exec:`");
}

fn below(random: &mut ChaCha8Rng, end: u64) -> u64 {
    random.random_range(0..end)
}

/// A window of two to four nodes, of which some have no CPUs, and threads with reads all around the
/// policy's limits.
fn drawn(random: &mut ChaCha8Rng) -> Snapshot {
    let nodes = 2 + below(random, 3) as u32;
    let has_cpus: Vec<bool> = (0..nodes).map(|id| id == 0 || below(random, 4) > 0).collect();
    let node = |random: &mut ChaCha8Rng, id: u32| NodeLoad {
        id: NodeId(id),
        cpus: if has_cpus[id as usize] { vec![id] } else { Vec::new() },
        distance: (0..nodes).map(|to| (NodeId(to), if to == id { 10 } else { 20 + below(random, 2) as u32 })).collect(),
        ..NodeLoad::default()
    };
    let bytes = |random: &mut ChaCha8Rng| {
        let most = [3 << 20, 200_000_000, 400_000_000, 999_960_000, 1 << 42][below(random, 5) as usize];
        let some: Vec<_> = (0..nodes).filter(|_| below(random, 3) > 0).map(NodeId).collect();
        some.into_iter().map(|node| (node, below(random, 3) * most / 2)).collect()
    };
    let thread = |random: &mut ChaCha8Rng, i: u32| Thread {
        tid: 10 + i,
        pid: 5,
        start_ns: (below(random, 2) == 0).then_some(u64::from(i) + 1),
        node: NodeId(below(random, u64::from(nodes)) as u32),
        allowed_nodes: (0..nodes).filter(|_| below(random, 5) > 0).map(NodeId).collect(),
        pinned: (below(random, 6) == 0).then(|| "bound".to_owned()),
        read_bytes: bytes(random),
        write_bytes: bytes(random),
        ..Thread::default()
    };
    let threads = (0..below(random, 9) as u32).map(|i| thread(random, i)).collect();
    let nodes = (0..nodes).map(|id| node(random, id)).collect();
    Snapshot { version: placement::snapshot::VERSION, window_s: 0.5, nodes, threads, ..Snapshot::default() }
}

#[test]
fn the_example_makes_the_plans_of_nthread_rl() {
    let example = concat!(env!("CARGO_MANIFEST_DIR"), "/../../../examples/policies/nthread_rl.py");
    let mut theirs = External::start("exec:", Arc::new(Here::new(example, None)), 0, Patience::Waits(ANSWER)).unwrap();
    let mut ours = placement::policy("nthread-rl", &placement::nthread::Settings::default()).unwrap();
    let mut random = ChaCha8Rng::seed_from_u64(0x5eed);
    let (mut moves, mut near) = (0, 0);
    for _ in 0..2000 {
        let window = drawn(&mut random);
        let topology = window.topology();
        let plan = ours.decide(&topology, &window);
        let by_them = theirs.decide(&topology, &window);
        assert_eq!(by_them.moves, plan.moves, "{:?}: {}", by_them.notes, window.to_json().unwrap());
        moves += plan.moves.len();
        near += plan.moves.iter().filter(|mv| mv.why.to_string().contains("nearest")).count();
    }
    assert!(moves > 1000 && near > 20, "{moves} moves, {near} to the nearest node");
    assert_eq!(theirs.trouble(), None);
}

#[test]
fn the_short_example_fills_no_node_beyond_its_cpus() {
    let example = concat!(env!("CARGO_MANIFEST_DIR"), "/../../../examples/policies/spread.py");
    let mut policy = External::start("exec:", Arc::new(Here::new(example, None)), 0, Patience::Waits(ANSWER)).unwrap();
    let node = |id| NodeLoad { id: NodeId(id), cpus: vec![2 * id, 2 * id + 1], ..NodeLoad::default() };
    let thread = |tid| Thread {
        tid,
        pid: 1,
        node: NodeId(1),
        allowed_nodes: vec![NodeId(0), NodeId(1)],
        read_bytes: [(NodeId(0), 1000 - u64::from(tid))].into_iter().collect(),
        ..Thread::default()
    };
    let threads = (1..=4).map(thread).collect();
    let window = Snapshot { nodes: vec![node(0), node(1)], threads, ..window() };
    let plan = policy.decide(&window.topology(), &window);
    assert_eq!(plan.moves.iter().filter_map(Move::tid).collect::<Vec<_>>(), [1, 2], "{plan:?}");
}
