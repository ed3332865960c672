//! Images that come from a registry, by their digest: whoever watches sees how far they
//! are, and what does not come is an error that says so.

use std::fs::{self, File};
use std::io::{self, Read as _};
use std::net::TcpListener;
use std::path::Path;
use std::process::{Child, Command as Process, Stdio};

use stockade_testkit::{ContainerEngine, EngineKind, ProgramEnd, TestUser};

use crate::contained::SandboxFixture;
use crate::kept::wait_until;
use crate::life::engine_directory;
use crate::terminal::{Terminal, ends};

/// The distribution's registry on a port of the loopback.
struct Registry {
    server: Child,
    address: String,
}

impl Registry {
    fn start(directory: &Path) -> Self {
        let address = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string();
        let settings = directory.join("registry.yml");
        let data = directory.join("registry");
        let text = format!(
            "version: 0.1\nlog: {{level: error}}\nhttp: {{addr: \"{address}\"}}\nstorage: {{filesystem: {{rootdirectory: {}}}}}\n",
            data.display()
        );
        fs::write(&settings, text).unwrap();
        let mut server = Process::new("docker-registry");
        server.arg("serve").arg(&settings).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let server = server.spawn().expect("it is installed by the test command");
        wait_until("the registry listens", || std::net::TcpStream::connect(&address).is_ok());
        Self { server, address }
    }
}

impl Drop for Registry {
    fn drop(&mut self) {
        let _ = self.server.kill();
        let _ = self.server.wait();
    }
}

/// A program and so much that nothing makes smaller that it does not come at once.
fn archive(directory: &Path) -> std::path::PathBuf {
    let root = directory.join("small");
    for name in ["bin", "tmp", "proc", "dev", "sys", "etc"] {
        fs::create_dir_all(root.join(name)).unwrap();
    }
    fs::copy("/bin/busybox", root.join("bin/busybox")).expect("it is installed by the test command");
    std::os::unix::fs::symlink("busybox", root.join("bin/sh")).unwrap();
    let mut noise = File::open("/dev/urandom").unwrap().take(64 << 20);
    io::copy(&mut noise, &mut File::create(root.join("noise")).unwrap()).unwrap();
    let archive = directory.join("small.tar");
    let made = Process::new("tar").arg("-C").arg(&root).arg("-cf").arg(&archive).arg(".").status().unwrap();
    assert!(made.success());
    archive
}

/// Puts an image into the registry and takes it from the engine: its name there, with
/// its digest.
fn publish(engine: &ContainerEngine, registry: &Registry, archive: &Path, push: &[&str]) -> String {
    let image = engine.import_image(archive).unwrap();
    let name = format!("{}/small", registry.address);
    engine.run_client(&["tag", &image, &format!("{name}:1")]).unwrap();
    engine.run_client(&[push, &[&format!("{name}:1")]].concat()).unwrap();
    let curl_output = Process::new("curl")
        .args(["-sSI", "-H", "Accept: application/vnd.docker.distribution.manifest.v2+json"])
        .args(["-H", "Accept: application/vnd.oci.image.manifest.v1+json"])
        .arg(format!("http://{}/v2/small/manifests/1", registry.address))
        .output()
        .unwrap();
    let heads = String::from_utf8(curl_output.stdout).unwrap();
    let digest = heads.lines().find_map(|line| line.strip_prefix("Docker-Content-Digest: ")).expect("it has a digest");
    forget(engine);
    format!("{name}@{}", digest.trim())
}

/// The engine has no image any more.
fn forget(engine: &ContainerEngine) {
    let images = engine.run_client(&["images", "--quiet"]).unwrap();
    for image in images.lines() {
        engine.run_client(&["rmi", "--force", image]).unwrap();
    }
    assert_eq!(engine.run_client(&["images", "--quiet"]).unwrap(), "");
}

#[test]
fn an_image_comes_to_docker_by_its_digest() {
    comes(EngineKind::Docker, "docker", "DOCKER_HOST", &["push"]);
}

#[test]
fn an_image_comes_to_podman_by_its_digest() {
    comes(EngineKind::Podman, "podman", "CONTAINER_HOST", &["push", "--tls-verify=false"]);
}

fn comes(kind: EngineKind, name: &str, variable: &'static str, push: &[&str]) {
    if !TestUser::available_users().contains(&TestUser::Root) {
        eprintln!("not run: a container engine needs root");
        return;
    }
    let directory = engine_directory();
    let registry = Registry::start(directory.path());
    let engine =
        ContainerEngine::start(kind, &directory.path().join("engine")).expect("it is installed by the test command");
    let image = publish(&engine, &registry, &archive(directory.path()), push);
    let client = SandboxFixture::of(&engine, variable);

    let (before, digest) = image.split_once("@sha256:").unwrap();
    let wrong = format!("{before}@sha256:{}", digest.chars().rev().collect::<String>());
    client.refused(&["create", "--backend", name, "--image", &wrong], "cannot get the image", None);
    let create = ["create", "--backend", name, "--image", &image];
    let output = client.run(&create);
    assert_eq!(output.ended, ProgramEnd::Code(0), "{}", output.combined_text());
    let id = output.stdout.trim_end();
    assert!(!output.stderr.contains("getting"), "nobody watches:\n{}", output.stderr);
    assert_eq!(client.done(&["exec", "--mode", "never", id, "--", "/bin/sh", "-c", "echo came"]), "came\n");
    client.done(&["destroy", id]);

    forget(&engine);
    let mut terminal = Terminal::start(&client.world, &client.command(&create));
    terminal.expect(&format!("getting {before}"));
    let text = ends(terminal, 0);
    let id = text.rsplit("\u{1b}[K").next().unwrap().trim_end();
    client.done(&["destroy", id]);

    forget(&engine);
    drop(registry);
    client.refused(&create, "cannot get the image", None);
    assert_eq!(client.done(&["list"]), "", "what could not be made is not listed");
}
