//! What a machine starts from: the disk of its system, the disk with what is to
//! be run, and the archive that finds the first.

use std::fs;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, ensure};

use super::{Built, Check, First, packages, step};
use crate::workspace;

/// What the suites and their probes use, besides the smallest system.
const PACKAGES: &str = "attr,curl,dbus,dbus-user-session,gcc,git,gpg-agent,iproute2,kmod,libc6-dev,libpam-systemd,openssh-client,procps,python3,strace,systemd,util-linux,x11-utils";
/// Their release.
const RELEASE: &str = "bookworm";

/// Modules of the disk's driver, in the order they need one another. What is
/// built into a kernel is not there.
const DRIVER: &[&str] =
    &["virtio_ring", "virtio", "virtio_pci_legacy_dev", "virtio_pci_modern_dev", "virtio_pci", "virtio_blk"];

/// Finds the system's disk and goes on there.
const START: &str = "#!/bin/busybox sh
/bin/busybox mount -t devtmpfs dev /dev
for module in $(/bin/busybox cat /modules/order); do /bin/busybox insmod /modules/$module; done
/bin/busybox mount -t ext4 /dev/vda /system || exec /bin/busybox poweroff -f
/bin/busybox mount --move /dev /system/dev
exec /bin/busybox switch_root /system ${first:-/guest}
";

/// Runs the checks where a service manager is the first process.
const SERVICE: &str = "[Unit]
After=systemd-user-sessions.service
[Service]
ExecStart=/guest
TimeoutStartSec=infinity
LimitNOFILE=65536
";

/// A system that can be started.
pub struct Boot {
    /// The kernel.
    pub kernel: PathBuf,
    /// The archive that finds the disk.
    pub start: PathBuf,
    /// The disk.
    pub disk: PathBuf,
}

/// The tree of the system, kept from run to run.
pub fn system(work: &Path) -> Result<PathBuf> {
    let tree = work.join("system");
    let made = work.join("system.made");
    let recipe = format!("{RELEASE} {PACKAGES}\n");
    if fs::read_to_string(&made).is_ok_and(|known| known == recipe) {
        return Ok(tree);
    }
    eprintln!("making a system from packages");
    let _ = fs::remove_dir_all(&tree);
    fs::create_dir_all(work).with_context(|| format!("making {}", work.display()))?;
    let at = tree.display().to_string();
    let include = format!("--include={PACKAGES}");
    step("debootstrap", &["--variant=minbase", &include, RELEASE, &at, &packages::archive()?], work)?;
    step("chroot", &[&at, "useradd", "--create-home", "--shell", "/bin/bash", "stockade-test"], work)?;
    for spare in ["var/cache/apt", "var/lib/apt/lists", "usr/share/doc", "usr/share/locale"] {
        let _ = fs::remove_dir_all(tree.join(spare));
    }
    fs::write(&made, recipe).context("noting what was made")?;
    Ok(tree)
}

/// What starts `kernel` over the system.
pub fn boot(work: &Path, name: &str, package: &Path, system: &Path) -> Result<Boot> {
    let (modules, version) = modules(package)?;
    let own = system.join("usr/lib/modules").join(&version);
    if !own.exists() {
        fs::create_dir_all(system.join("usr/lib/modules"))?;
        step("cp", &["-a", &modules.display().to_string(), &own.display().to_string()], work)?;
        step("depmod", &["-b", &system.join("usr").display().to_string(), &version], work)?;
    }
    let guest = system.join("guest");
    fs::write(&guest, include_str!("guest.sh"))?;
    fs::set_permissions(&guest, fs::Permissions::from_mode(0o755))?;
    serve(system)?;
    let disk = work.join(format!("system-{name}.ext4"));
    ext4(system, &disk, "4G")?;
    let start = start_archive(&work.join(format!("start-{name}")), &modules)?;
    let kernel = package.join("boot").join(format!("vmlinuz-{version}"));
    ensure!(kernel.exists(), "there is no {}", kernel.display());
    Ok(Boot { kernel, start, disk })
}

/// What the service manager starts: the checks, and the user's own manager.
fn serve(system: &Path) -> Result<()> {
    let units = system.join("etc/systemd/system");
    let wants_dir = units.join("multi-user.target.wants");
    let linger = system.join("var/lib/systemd/linger");
    for directory in [&wants_dir, &linger] {
        fs::create_dir_all(directory).with_context(|| format!("making {}", directory.display()))?;
    }
    fs::write(linger.join("stockade-test"), "")?;
    fs::write(units.join("checks.service"), SERVICE)?;
    for (link, unit) in [
        (wants_dir.join("checks.service"), "/etc/systemd/system/checks.service"),
        (units.join("default.target"), "/lib/systemd/system/multi-user.target"),
    ] {
        let _ = fs::remove_file(&link);
        symlink(unit, &link).with_context(|| format!("making {}", link.display()))?;
    }
    Ok(())
}

/// The modules of a kernel's package, and its version.
fn modules(package: &Path) -> Result<(PathBuf, String)> {
    let places = ["usr/lib/modules", "lib/modules"].map(|place| package.join(place));
    let place = places.iter().find(|place| place.exists()).context("the package has no modules")?;
    let entry = fs::read_dir(place)?.flatten().next().context("the package has no modules")?;
    Ok((entry.path(), entry.file_name().to_string_lossy().into_owned()))
}

fn start_archive(tree: &Path, modules: &Path) -> Result<PathBuf> {
    let _ = fs::remove_dir_all(tree);
    for directory in ["bin", "dev", "modules", "system"] {
        fs::create_dir_all(tree.join(directory))?;
    }
    fs::copy("/bin/busybox", tree.join("bin/busybox")).context("copying busybox")?;
    let mut order = String::new();
    for name in DRIVER {
        let found = step("find", &[&modules.display().to_string(), "-name", &format!("{name}.ko*")], tree)?;
        let found = String::from_utf8_lossy(&found).lines().next().map(PathBuf::from);
        let Some(found) = found else { continue };
        let to = tree.join("modules").join(format!("{name}.ko"));
        match found.extension().is_some_and(|kind| kind == "xz") {
            true => fs::write(&to, step("xz", &["-dc", &found.display().to_string()], tree)?)?,
            false => fs::copy(&found, &to).map(drop)?,
        }
        order.push_str(name);
        order.push_str(".ko\n");
    }
    fs::write(tree.join("modules/order"), order)?;
    fs::write(tree.join("init"), START)?;
    fs::set_permissions(tree.join("init"), fs::Permissions::from_mode(0o755))?;
    let archive = step("sh", &["-c", "find . | cpio --quiet -o -H newc"], tree)?;
    // A kernel's name has a point in it.
    let start = PathBuf::from(format!("{}.cpio", tree.display()));
    fs::write(&start, archive).context("writing the start archive")?;
    Ok(start)
}

/// The disk with what is to be run: the program, the suites, the sources that
/// they look at, and the list of checks.
pub fn load(work: &Path, built: &Built, checks: &[Check]) -> Result<PathBuf> {
    let tree = work.join("load");
    let _ = fs::remove_dir_all(&tree);
    fs::create_dir_all(tree.join("suites"))?;
    fs::create_dir_all(tree.join("sources"))?;
    fs::copy(&built.stockade, tree.join("stockade")).context("copying the program")?;
    for (name, path) in &built.suites {
        fs::copy(path, tree.join("suites").join(name)).with_context(|| format!("copying {name}"))?;
    }
    let root = workspace()?;
    let sources = tree.join("sources");
    step(
        "sh",
        &["-c", "git ls-files -z tests crates | tar -c --null -T - | tar -x -C \"$0\"", &sources.display().to_string()],
        &root,
    )?;
    fs::write(tree.join("root"), root.display().to_string())?;
    for first in [First::Guest, First::Manager] {
        let own = checks.iter().filter(|check| check.first == first);
        let lines: Vec<String> = own.map(|check| format!("{}\t{}\n", check.name, check.command)).collect();
        fs::write(tree.join(first.list()), lines.concat())?;
    }
    let disk = work.join("load.ext4");
    ext4(&tree, &disk, "2G")?;
    Ok(disk)
}

fn ext4(tree: &Path, disk: &Path, size: &str) -> Result<()> {
    let _ = fs::remove_file(disk);
    let (tree, disk) = (tree.display().to_string(), disk.display().to_string());
    step("mke2fs", &["-q", "-t", "ext4", "-d", &tree, &disk, size], Path::new("/")).map(drop)
}
