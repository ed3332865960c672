//! Who a command is.

use std::fs;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};

use crate::Verdict;
use crate::bench::Bench;

super::cases! { "users":
    its_files_belong_to_the_owner, it_finds_its_own_name, it_has_no_capabilities, it_can_gain_no_privileges,
    a_set_user_id_bit_does_nothing, it_cannot_become_another, unreadable_files_stay_unread, the_masks_of_new_files_are_its_own,
    it_has_no_groups_of_the_host, other_users_files_are_not_its_to_give, new_namespaces_give_nothing,
}

fn its_files_belong_to_the_owner(bench: &Bench) -> Verdict {
    let test_sandbox = bench.test_sandbox();
    test_sandbox.prints("touch file; mkdir dir; ln -s x link; touch ~/file");
    let own = fs::metadata(&test_sandbox.plan.workspace).unwrap();
    let home = fs::metadata(test_sandbox.plan.home.join("file")).unwrap();
    let made = ["file", "dir", "link"].map(|name| fs::symlink_metadata(test_sandbox.work(name)).unwrap());
    for found in made.iter().chain([&home]) {
        assert_eq!((found.uid(), found.gid()), (own.uid(), own.gid()));
    }
    Ok(())
}

fn it_finds_its_own_name(bench: &Bench) -> Verdict {
    let test_sandbox = bench.test_sandbox();
    let output =
        test_sandbox.prints("id -un; python3 -c 'import pwd, os; print(pwd.getpwuid(os.getuid()).pw_dir)'; echo ~");
    let lines: Vec<&str> = output.lines().collect();
    assert!(["agent", "root"].contains(&lines[0]) && lines[1..] == ["/home/agent", "/home/agent"], "{output}");
    Ok(())
}

fn it_has_no_capabilities(bench: &Bench) -> Verdict {
    let output = bench.test_sandbox().prints("grep -E '^Cap(Inh|Prm|Eff|Amb)' /proc/self/status | cut -f2 | sort -u");
    assert_eq!(output, "0000000000000000\n");
    Ok(())
}

fn it_can_gain_no_privileges(bench: &Bench) -> Verdict {
    // PR_GET_NO_NEW_PRIVS (prctl(2)).
    assert_eq!(
        bench.test_sandbox().python("import ctypes; print(ctypes.CDLL(None).prctl(39, 0, 0, 0, 0))").ok(),
        "1\n"
    );
    Ok(())
}

fn a_set_user_id_bit_does_nothing(bench: &Bench) -> Verdict {
    let test_sandbox = bench.test_sandbox();
    fs::copy("/usr/bin/id", test_sandbox.work("id")).unwrap();
    fs::set_permissions(test_sandbox.work("id"), fs::Permissions::from_mode(0o6755)).unwrap();
    assert_eq!(test_sandbox.prints("./id -u"), test_sandbox.prints("id -u"));
    assert_eq!(
        test_sandbox.prints(
            "su root -c 'id -u' </dev/null 2>/dev/null && id -u > su-worked; [ ! -e su-worked ] || echo worked"
        ),
        ""
    );
    Ok(())
}

fn it_cannot_become_another(bench: &Bench) -> Verdict {
    let change = "import os\nfor call in (os.setuid, os.setgid, lambda n: os.setgroups([n])):\n  \
                  try: call(12345); print('changed')\n  except OSError: print('refused')";
    assert_eq!(bench.test_sandbox().python(change).ok(), "refused\n".repeat(3));
    Ok(())
}

fn unreadable_files_stay_unread(bench: &Bench) -> Verdict {
    let ran = bench
        .test_sandbox()
        .run("cat /etc/shadow /proc/kcore 2>/dev/null | wc -c; cat /proc/1/environ 2>/dev/null | wc -c");
    match ran.ok().as_str() {
        "0\n0\n" => Ok(()),
        // That of a launcher, in which nothing of the host's is.
        output => {
            assert!(output.starts_with("0\n"), "{output}");
            Err(ran.declares("launcher"))
        }
    }
}

fn the_masks_of_new_files_are_its_own(bench: &Bench) -> Verdict {
    let test_sandbox = bench.test_sandbox();
    test_sandbox.prints("umask 077; touch private; umask 022; touch public; umask 0; mkdir -m 1777 all");
    let mode = |name| fs::metadata(test_sandbox.work(name)).unwrap().permissions().mode() & 0o7777;
    assert_eq!([mode("private"), mode("public"), mode("all")], [0o600, 0o644, 0o1777]);
    Ok(())
}

fn it_has_no_groups_of_the_host(bench: &Bench) -> Verdict {
    let output = bench.test_sandbox().prints("id -g; id -G");
    let (own, all) = output.split_once('\n').unwrap();
    // Those that are not known inside are shown as nobody's.
    let others: Vec<&str> = all.split_whitespace().filter(|group| *group != own && *group != "65534").collect();
    assert_eq!(others, Vec::<&str>::new());
    Ok(())
}

fn other_users_files_are_not_its_to_give(bench: &Bench) -> Verdict {
    let test_sandbox = bench.test_sandbox();
    let before = fs::metadata(&test_sandbox.plan.workspace).unwrap();
    test_sandbox.prints("touch mine; chown 12345:12345 mine 2>/dev/null; chgrp 12345 mine 2>/dev/null; true");
    let after = fs::metadata(test_sandbox.work("mine")).unwrap();
    assert_eq!((after.uid(), after.gid()), (before.uid(), before.gid()));
    Ok(())
}

fn new_namespaces_give_nothing(bench: &Bench) -> Verdict {
    let test_sandbox = bench.test_sandbox();
    let output = test_sandbox.prints("unshare -Urm sh -c 'mount -t tmpfs x /mnt && touch mounted' 2>/dev/null; true");
    assert_eq!(output, "");
    assert!(!test_sandbox.work("mounted").exists(), "it mounted");
    Ok(())
}
