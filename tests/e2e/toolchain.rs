//! The Rust toolchain, shown to a user who may not reach where it lies.

use stockade_testkit::{TestCommand, TestUser};

use crate::world::World;

/// The toolchain and the crates it needs, wherever this machine keeps them.
pub struct Toolchain {
    pub sysroot: String,
    pub cargo_home: String,
}

/// The one that runs these tests.
pub fn toolchain() -> Toolchain {
    let sysroot = std::process::Command::new("rustc").args(["--print", "sysroot"]).output().unwrap();
    let home = std::env::var("HOME").unwrap();
    Toolchain {
        sysroot: String::from_utf8(sysroot.stdout).unwrap().trim().to_owned(),
        cargo_home: std::env::var("CARGO_HOME").unwrap_or(format!("{home}/.cargo")),
    }
}

/// The toolchain may lie in root's home: it is shown at a place of the user's
/// own, in a mount namespace that ends with the command.
pub fn with_toolchain(command: TestCommand, toolchain: &Toolchain, world: &World) -> TestCommand {
    let toolchain_path = world.dir("home/toolchain").display().to_string();
    let cargo = world.dir("home/cargo").display().to_string();
    let registry = world.dir("home/cargo/registry").display().to_string();
    let mut command = command
        .env("PATH", format!("{toolchain_path}/bin:{}", crate::world::PATH))
        .env("CARGO_HOME", &cargo)
        .env("CARGO_TARGET_DIR", world.workspace().join("target"));
    if TestUser::available_users().contains(&TestUser::Root) {
        let show = format!(
            "mount --bind {} {toolchain_path} && mount --bind {}/registry {registry} && exec setpriv --reuid {} --regid {} --clear-groups -- \"$@\"",
            toolchain.sysroot, toolchain.cargo_home, world.account.uid, world.account.gid
        );
        command = command.with_prefix(["unshare", "--mount", "--propagation", "private", "sh", "-c", &show, "sh"]);
    } else {
        command = command
            .env("PATH", format!("{}/bin:{}", toolchain.sysroot, crate::world::PATH))
            .env("CARGO_HOME", &toolchain.cargo_home);
    }
    command
}
