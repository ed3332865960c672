//! Archives that would write outside, twice, half, or more than there may be.

use std::fs;
use std::io::Write;
use std::os::unix::fs::MetadataExt;
use std::process::{Command, Stdio};

use proptest::prelude::*;
use stockade_files::{ContentLimits, FilesError, TreePath, UploadTarget};
use tar::{EntryType, Header};

use crate::{BOUNDS, Ground, path};

const MERGED: UploadTarget = UploadTarget::Into { replace: false };

/// An archive by hand: nothing of it is checked by whoever makes it.
#[derive(Clone, Default)]
struct Made(Vec<u8>);

impl Made {
    fn member(mut self, kind: EntryType, name: &str, link: &str, content: &[u8]) -> Self {
        self.header(kind, name, link, content.len() as u64, 0o6755);
        self.content(content);
        self
    }

    fn header(&mut self, kind: EntryType, name: &str, link: &str, size: u64, mode: u32) {
        let mut header = Header::new_gnu();
        let old = header.as_old_mut();
        old.name[..name.len()].copy_from_slice(name.as_bytes());
        old.linkname[..link.len()].copy_from_slice(link.as_bytes());
        header.set_entry_type(kind);
        header.set_mode(mode);
        header.set_mtime(1_000_000_000);
        header.set_size(size);
        header.set_cksum();
        self.0.extend_from_slice(header.as_bytes());
    }

    fn content(&mut self, content: &[u8]) {
        self.0.extend_from_slice(content);
        self.0.resize(self.0.len().next_multiple_of(512), 0);
    }

    fn file(self, name: &str, content: &str) -> Self {
        self.member(EntryType::Regular, name, "", content.as_bytes())
    }

    fn directory(self, name: &str) -> Self {
        self.member(EntryType::Directory, name, "", b"")
    }

    fn link(self, name: &str, to: &str) -> Self {
        self.member(EntryType::Symlink, name, to, b"")
    }

    fn hard_link(self, name: &str, to: &str) -> Self {
        self.member(EntryType::Link, name, to, b"")
    }

    /// With an extension header before it.
    fn pax(self, kind: EntryType, key: &str, value: &str) -> Self {
        let rest = format!(" {key}={value}\n");
        let length = (1..).find(|digits| (rest.len() + digits).to_string().len() == *digits).unwrap() + rest.len();
        self.member(kind, "pax", "", format!("{length}{rest}").as_bytes())
    }

    fn end(mut self) -> Vec<u8> {
        self.0.resize(self.0.len() + 1_024, 0);
        self.0
    }
}

/// Demands that an archive is refused with these words, and that nothing changes.
#[track_caller]
fn refused(archive: &[u8], words: &str) {
    let ground = Ground::new();
    fs::write(ground.root.join("there"), "before").unwrap();
    let before = (ground.inside(), ground.outside());
    for (at, target) in [("", MERGED), ("", UploadTarget::Into { replace: true }), ("new", UploadTarget::New)] {
        let error = ground.tree.upload_archive(&path(at), &mut &*archive, target, BOUNDS).unwrap_err().to_string();
        assert!(error.contains(words), "{error}");
        assert_eq!((ground.inside(), ground.outside()), before);
    }
}

/// Whether a program that takes an archive at its word writes outside with it.
#[allow(clippy::disallowed_methods, reason = "the control of an attack")]
fn leads_out(archive: impl Fn(&Ground) -> Vec<u8>) -> bool {
    let ground = Ground::new();
    let before = ground.outside();
    let mut tar = Command::new("tar");
    tar.arg("-xPf-").current_dir(&ground.root).stdin(Stdio::piped()).stderr(Stdio::null());
    let mut running = tar.spawn().unwrap();
    let _ = running.stdin.take().unwrap().write_all(&archive(&ground));
    running.wait().unwrap();
    ground.outside() != before
}

#[test]
fn a_member_that_climbs_or_is_absolute_is_refused() {
    refused(&Made::default().file("good", "x").file("../outside/secret", "x").end(), "holds no `..`");
    refused(&Made::default().file("a/../../outside/secret", "x").end(), "holds no `..`");
    refused(&Made::default().file("/etc/stockade-test", "x").end(), "does not begin with `/`");
    refused(&Made::default().pax(EntryType::XHeader, "path", "../outside/secret").file("a", "x").end(), "no `..`");
    let long = Made::default().member(EntryType::GNULongName, "././@LongLink", "", b"../outside/secret\0");
    refused(&long.file("a", "x").end(), "holds no `..`");
    assert!(leads_out(|_| Made::default().file("../outside/secret", "x").end()));
    assert!(leads_out(|ground| Made::default().file(ground.outside.join("s").to_str().unwrap(), "x").end()));
}

#[test]
fn a_member_that_passes_a_link_is_refused() {
    refused(&Made::default().link("l", "../outside").file("l/secret", "x").end(), "leads out of the archive");
    refused(&Made::default().link("l", "/").file("l/x", "x").end(), "leads out of the archive");
    refused(&Made::default().directory("d").link("l", "d").file("l/x", "x").end(), "which is no directory");
    refused(&Made::default().file("f", "x").file("f/x", "x").end(), "which is no directory");
    // Each of two links stays inside by its letters; one after the other they do not.
    let chain = Made::default().directory("d").link("d/up", "..").link("l", "d/up/../outside");
    refused(&chain.end(), "leads out of the archive");
    assert!(leads_out(|_| Made::default().link("l", "../outside").file("l/secret", "x").end()));
}

#[test]
fn a_link_of_the_tree_is_not_passed_either() {
    let archive = Made::default().file("l/secret", "x").end();
    for target in [MERGED, UploadTarget::Into { replace: true }] {
        let ground = Ground::new();
        std::os::unix::fs::symlink("../outside", ground.root.join("l")).unwrap();
        let before = (ground.inside(), ground.outside());
        let error = ground.tree.upload_archive(&path(""), &mut archive.as_slice(), target, BOUNDS).unwrap_err();
        assert_eq!(error, FilesError::Exists(path("l")));
        assert_eq!((ground.inside(), ground.outside()), before);
    }
}

#[test]
fn a_hard_link_leads_to_a_file_of_the_archive_alone() {
    refused(&Made::default().hard_link("h", "../outside/secret").end(), "holds no `..`");
    refused(&Made::default().hard_link("h", "/etc/passwd").end(), "does not begin with `/`");
    refused(&Made::default().hard_link("h", "there").end(), "the link comes before its target");
    refused(&Made::default().link("l", "a").hard_link("h", "l").end(), "or it is not a file");
    refused(&Made::default().directory("d").hard_link("h", "d").end(), "or it is not a file");
    let linked = |_: &Ground| {
        let first = Made::default().hard_link("h", "../outside/secret");
        first.member(EntryType::Regular, "h", "", b"x").end()
    };
    // GNU tar removes a name before it makes it; written through, it would be outside.
    assert!(!leads_out(linked));
    let ground = Ground::new();
    let good = Made::default().file("f", "x").hard_link("d/h", "f").end();
    ground.tree.upload_archive(&path(""), &mut good.as_slice(), MERGED, BOUNDS).unwrap();
    let inode = |name: &str| fs::metadata(ground.root.join(name)).unwrap().ino();
    assert_eq!(inode("f"), inode("d/h"));
}

#[test]
fn special_and_ambiguous_members_are_refused() {
    for (kind, words) in [
        (EntryType::Fifo, "a pipe"),
        (EntryType::Char, "a device"),
        (EntryType::Block, "a device"),
        (EntryType::GNUSparse, "a sparse file"),
        (EntryType::Continuous, "of an unsupported kind"),
        (EntryType::new(b'V'), "of an unsupported kind"),
    ] {
        refused(&Made::default().file("good", "x").member(kind, "bad", "", b"").end(), words);
    }
    refused(&Made::default().file("a", "x").file("./a", "y").end(), "twice");
    refused(&Made::default().file("a", "x").directory("a").end(), "is a file, not a directory");
    refused(&Made::default().directory("a").link("a", "b").end(), "twice");
    refused(&Made::default().file("", "x").end(), "its root is not a directory");
    refused(&Made::default().member(EntryType::Directory, "d", "", b"hidden").end(), "only a file has a content");
    refused(&Made::default().member(EntryType::Link, "d", "e", b"hidden").end(), "only a file has a content");
    refused(&Made::default().link("l", "").end(), "has no target");
    refused(&Made::default().pax(EntryType::XHeader, "GNU.sparse.map", "0,1").file("a", "x").end(), "sparse");
    refused(&Made::default().pax(EntryType::XHeader, "size", "-1").file("a", "x").end(), "not a number");
    refused(&Made::default().pax(EntryType::XGlobalHeader, "path", "x").file("a", "x").end(), "for all members");
    refused(
        &Made::default().member(EntryType::XHeader, "p", "", b"99 path=x\n").file("a", "x").end(),
        "no list of pairs",
    );
}

#[test]
fn an_archive_is_bounded_before_it_is_written() {
    let bomb = |size: u64| {
        let mut made = Made::default();
        made.header(EntryType::Regular, "bomb", "", size, 0o644);
        made.end()
    };
    refused(&bomb(BOUNDS.bytes + 1), "more than the 1048576 bytes");
    refused(&bomb(u64::MAX), "more than the 1048576 bytes");
    let mut long = Made::default();
    long.header(EntryType::GNULongName, "././@LongLink", "", 1 << 40, 0o644);
    refused(&long.end(), "too long");
    refused(&Made::default().pax(EntryType::XHeader, "path", &"d/".repeat(200)).file("a", "x").end(), "components");
    let many = (0..=BOUNDS.entries).fold(Made::default(), |made, n| made.file(&n.to_string(), ""));
    refused(&many.end(), "more than the 1000 entries");
    // Directories that nobody names count as well, and headers without an end.
    let deep =
        (0..BOUNDS.entries / 10).fold(Made::default(), |made, n| made.file(&format!("{n}/{}", "d/".repeat(12)), ""));
    refused(&deep.end(), "more than the 1000 entries");
    let global =
        (0..2 * BOUNDS.entries + 1).fold(Made::default(), |made, _| made.pax(EntryType::XGlobalHeader, "comment", "x"));
    refused(&global.end(), "more than the 1000 entries");
}

#[test]
fn a_part_of_an_archive_is_no_archive() {
    let whole = Made::default().directory("d").file("d/f", &"x".repeat(700)).link("l", "d/f").end();
    let ground = Ground::new();
    let end = whole.len() - 1_024;
    for length in (0..=end + 511).step_by(73).chain([end, end + 511]) {
        let error = ground.tree.upload_archive(&path(""), &mut &whole[..length], MERGED, BOUNDS).unwrap_err();
        assert!(error.to_string().contains("is truncated"), "{length}: {error}");
        assert!(ground.inside().is_empty(), "{length}");
    }
    ground.tree.upload_archive(&path(""), &mut &whole[..end + 512], MERGED, BOUNDS).unwrap();
    assert_eq!(ground.inside().len(), 3);
}

#[test]
fn copied_files_have_neither_owner_nor_privileges() {
    let ground = Ground::new();
    let archive = Made::default()
        .pax(EntryType::XGlobalHeader, "comment", "a remark")
        .directory("./")
        .directory("d/")
        .file("d/f", "one")
        .member(EntryType::Regular, "old/", "", b"")
        .pax(EntryType::XHeader, "path", &format!("{}/long", "n".repeat(200)))
        .file("short", "two")
        .link("d/l", "../d/f")
        .end();
    let done = ground.tree.upload_archive(&path("new"), &mut archive.as_slice(), UploadTarget::New, BOUNDS).unwrap();
    assert_eq!((done.entries, done.bytes), (6, 6));
    let shown: Vec<String> =
        ground.inside().into_iter().map(|(path, what)| format!("{} {what}", path.display())).collect();
    let long = "n".repeat(200);
    let expected = [
        "new directory 755".to_owned(),
        "new/d directory 755".to_owned(),
        "new/d/f file 755 one".to_owned(),
        "new/d/l link ../d/f".to_owned(),
        format!("new/{long} directory 755"),
        format!("new/{long}/long file 755 two"),
        "new/old directory 755".to_owned(),
    ];
    assert_eq!(shown, expected);
    assert_eq!(fs::metadata(ground.root.join("new/d/f")).unwrap().mtime(), 1_000_000_000);
}

#[test]
fn among_existing_files_all_or_nothing_is_written() {
    let ground = Ground::new();
    for (name, content) in [("a/old", "1"), ("m/f", "2"), ("z/clash", "3")] {
        fs::create_dir_all(ground.root.join(name).parent().unwrap()).unwrap();
        fs::write(ground.root.join(name), content).unwrap();
    }
    let before = ground.inside();
    // `a`, `b` and `m` are placed before the directory is met that is a file there.
    let archive =
        |last: &str| Made::default().file("a/new", "4").file("b/new", "5").file("m/f", "6").file(last, "7").end();
    let upload = |last: &str, replace| {
        ground.tree.upload_archive(&path(""), &mut archive(last).as_slice(), UploadTarget::Into { replace }, BOUNDS)
    };
    assert_eq!(upload("z/clash/x", true), Err(FilesError::Exists(path("z/clash"))));
    assert_eq!(ground.inside(), before);
    assert_eq!(upload("z/other", false), Err(FilesError::Exists(path("m/f"))));
    assert_eq!(ground.inside(), before);
    upload("z/other", true).unwrap();
    let read = |name: &str| fs::read_to_string(ground.root.join(name)).unwrap();
    assert_eq!(["a/old", "a/new", "b/new", "m/f", "z/clash", "z/other"].map(read), ["1", "4", "5", "6", "3", "7"]);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn whatever_is_in_an_archive_nothing_outside_changes(
        bytes in proptest::collection::vec((0usize..4_096, any::<u8>()), 0..12),
        sum in any::<bool>(),
    ) {
        let mut archive = Made::default()
            .directory("d").file("d/f", "one").link("l", "d/f").hard_link("h", "d/f")
            .pax(EntryType::XHeader, "path", "p/q").file("s", "two").end();
        let length = archive.len();
        for (at, byte) in bytes {
            archive[at % length] = byte;
        }
        if sum {
            // As whoever makes it on purpose would.
            for block in archive.chunks_exact_mut(512).filter(|block| block.iter().any(|b| *b != 0)) {
                let mut header = Header::new_old();
                header.as_mut_bytes().copy_from_slice(block);
                header.set_cksum();
                block.copy_from_slice(header.as_bytes());
            }
        }
        let ground = Ground::new();
        let before = ground.outside();
        let upload_result = ground.tree.upload_archive(&TreePath::root(), &mut archive.as_slice(), MERGED, BOUNDS);
        prop_assert_eq!(ground.outside(), before);
        prop_assert!(upload_result.is_ok() || ground.inside().is_empty(), "{:?} and yet {:?}", upload_result, ground.inside());
        prop_assert!(!ground.inside().values().any(|what| what == "special"));
    }
}

#[test]
fn nothing_of_an_upload_is_left_when_it_is_refused_for_room() {
    let ground = Ground::new();
    let archive = Made::default().file("a", "1234").file("b", "5678").end();
    let small = ContentLimits { bytes: 7, entries: 10 };
    let error = ground.tree.upload_archive(&path(""), &mut archive.as_slice(), MERGED, small).unwrap_err();
    assert_eq!(error, FilesError::TooMuch { limit: 7, unit: "bytes" });
    assert!(ground.inside().is_empty());
    let exact = ContentLimits { bytes: 8, entries: 2 };
    ground.tree.upload_archive(&path(""), &mut archive.as_slice(), MERGED, exact).unwrap();
}
