//! Somebody exchanges a directory for a link while others go through it.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::fs::{CWD, RenameFlags, renameat_with};

use crate::{BOUNDS, Ground, path};

/// Rounds of what must never lead out.
const ROUNDS: usize = 4_000;
/// Rounds in which the control has to lead out once.
const ROUNDS_MAX: usize = 1_000_000;

/// Does something while `d` is now a directory and now a link out of the tree.
fn while_exchanged(ground: &Ground, act: impl FnOnce()) {
    fs::create_dir(ground.root.join("d")).unwrap();
    symlink(&ground.outside, ground.root.join("l")).unwrap();
    let over = AtomicBool::new(false);
    let (one, other) = (ground.root.join("d"), ground.root.join("l"));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !over.load(Ordering::Relaxed) {
                renameat_with(CWD, &one, CWD, &other, RenameFlags::EXCHANGE).unwrap();
            }
        });
        act();
        over.store(true, Ordering::Relaxed);
    });
}

fn is_hit(outside: &Path) -> bool {
    outside.join("file").exists()
}

#[test]
fn a_check_before_following_is_redirected_outside() {
    let ground = Ground::new();
    let mut hit = false;
    while_exchanged(&ground, || {
        let directory = ground.root.join("d");
        for _ in 0..ROUNDS_MAX {
            if directory.symlink_metadata().unwrap().is_dir() {
                // What a careful program does that knows names alone.
                let _ = fs::write(directory.join("file"), "x");
            }
            hit = is_hit(&ground.outside);
            if hit {
                break;
            }
        }
    });
    assert!(hit, "the race of the tests below is none");
}

#[test]
fn an_exchange_moves_no_lookup_outside() {
    let ground = Ground::new();
    let (mut made, mut refused) = (0, 0);
    while_exchanged(&ground, || {
        for round in 0..ROUNDS_MAX {
            match ground.tree.make_directory(&path("d/new"), false) {
                Ok(()) => made += 1,
                Err(_) => refused += 1,
            }
            let _ = ground.tree.remove(&path("d/new"), false);
            if round % 100 == 0 {
                let _ = ground.tree.write_file(&path("d/file"), &mut &b"x"[..], 0o644, BOUNDS);
            }
            if let Ok((read, _)) = ground.tree.read_file(&path("d/secret"), 0, 10) {
                panic!("it was led out and read {read:?}");
            }
            if round >= ROUNDS && made > 0 && refused > 0 {
                break;
            }
        }
    });
    assert!(made > 0 && refused > 0, "{made} made, {refused} refused: there was no race");
    assert_eq!(ground.outside().len(), 1);
}
