//! The rows of the attacks within containers: in sandboxes made by the program under
//! test with engines of the lane's own, judged by what the lab's servers saw. One sandbox
//! serves all rows of one configuration; the control of a row is that of its runs.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;

use anyhow::{Context as _, Result, ensure};
use stockade_testkit::{EngineKind, TestUser};
use stockade_tests::cross_section::Turn;

use crate::attacks::{Attack, breaches, script, with_proof};
use crate::containers::{Containers, Maker};
use crate::lab::{BEGIN, Lab};
use crate::task::{Play, Task};
use crate::world::World;

/// What a row may use, as it is inside.
const SHARED: &str = "/workspace/shared";
/// What is brought there.
const TOOLS: [&str; 3] = ["probe.py", "race", "ca.pem"];
/// Says that what the rows are written with is there.
const HAS_TOOLS: &str = "command -v curl git python3 ip ping > /dev/null && echo HAS-TOOLS";

/// A kind of containers.
#[derive(Debug)]
struct Kind {
    name: &'static str,
    engine: EngineKind,
    /// For `sandbox create`.
    options: &'static [&'static str],
    /// What is not played in it.
    unplayed: &'static [(&'static str, &'static str)],
}

const KINDS: &[Kind] = &[
    Kind { name: "docker", engine: EngineKind::Docker, options: &[], unplayed: &[] },
    Kind {
        name: "docker-runsc",
        engine: EngineKind::Docker,
        options: &["--runtime", "runsc", "--level", "restricted"],
        unplayed: WITHIN_GVISOR,
    },
    Kind { name: "podman", engine: EngineKind::Podman, options: &[], unplayed: &[] },
];

const OF_RUN: &str = "its steps are those of `run`";
const UNREAD: &str = "in a sandbox that lasts no request is read, and a profile that asks for it is refused";
const OWN_KERNEL: &str = "it asks what the host's kernel answers, and this is gVisor's own";
const PROXY_ALONE: &str = "what is granted is reached over the HTTP proxy only there, and the row uses none";

const WITHIN_GVISOR: &[(&str, &str)] = &[
    ("esc-0134", OWN_KERNEL),
    ("esc-0136", OWN_KERNEL),
    ("esc-0142", OWN_KERNEL),
    ("net-netlink", OWN_KERNEL),
    ("net-this-machine-is-reached-where-it-is-named", PROXY_ALONE),
];

/// The sandboxes of a kind, and their engine; made when a row asks for them.
#[derive(Default)]
struct Estate {
    containers: Option<Containers>,
    /// By the configuration that they were made with.
    sandboxes: BTreeMap<&'static str, Rc<Sandbox>>,
}

struct Sandbox {
    world: World,
    maker: Maker,
    id: String,
}

/// Every row in each kind of containers, and then the end of all that was made for them.
pub fn tasks(rows: &'static [Attack], text_of: impl Fn(&Attack) -> String) -> Vec<Task> {
    KINDS.iter().flat_map(|kind| tasks_of(kind, rows, &text_of)).collect()
}

fn tasks_of(kind: &'static Kind, rows: &'static [Attack], text_of: &impl Fn(&Attack) -> String) -> Vec<Task> {
    let estate = Rc::new(RefCell::new(Estate::default()));
    let task = |name: String, not_here: Option<&str>, play: Play| {
        let not_here = match TestUser::available_users().contains(&TestUser::Root) {
            true => not_here.map(str::to_owned),
            false => Some("the engine is root's".to_owned()),
        };
        Task { lane: Some(kind.name), needs_image: true, not_here, ..Task::new(name, play) }
    };
    let row = |attack: &'static Attack| {
        let (estate, text) = (Rc::clone(&estate), text_of(attack));
        let play = move |lab: &Lab| {
            let sandbox = estate.borrow_mut().sandbox(lab, kind, attack.config)?;
            sandbox.stands(lab, attack, &text)
        };
        let task = task(format!("{}/{}", attack.id, kind.name), why_not(attack, kind), Box::new(play));
        // In one kind, one row in two.
        Task { turn: Turn::Rarely(format!("{}/container", attack.id), 2), ..task }
    };
    let rows: Vec<Task> = rows.iter().map(row).collect();
    let end = Rc::clone(&estate);
    let end = task(format!("end/{}", kind.name), None, Box::new(move |_: &Lab| end.borrow_mut().end()));
    rows.into_iter().chain([end]).collect()
}

fn why_not(attack: &Attack, kind: &Kind) -> Option<&'static str> {
    if attack.special.is_some() {
        return Some(OF_RUN);
    }
    if attack.config.contains("inspect") {
        return Some(UNREAD);
    }
    kind.unplayed.iter().find(|(id, _)| *id == attack.id).map(|(_, why)| *why)
}

impl Estate {
    fn sandbox(&mut self, lab: &Lab, kind: &Kind, config: &'static str) -> Result<Rc<Sandbox>> {
        if let Some(sandbox) = self.sandboxes.get(config) {
            return Ok(Rc::clone(sandbox));
        }
        let containers = match &mut self.containers {
            Some(containers) => containers,
            none => none.insert(Containers::start(lab, kind.engine)?),
        };
        let sandbox = Rc::new(Sandbox::make(lab, containers.maker(kind.options), config)?);
        self.sandboxes.insert(config, Rc::clone(&sandbox));
        Ok(sandbox)
    }

    fn end(&mut self) -> Result<()> {
        for (_, sandbox) in std::mem::take(&mut self.sandboxes) {
            sandbox.maker.run(&sandbox.world, &["destroy", &sandbox.id])?;
        }
        self.containers.as_ref().context("no row made a sandbox")?.require_empty()
    }
}

impl Sandbox {
    fn make(lab: &Lab, maker: Maker, config: &str) -> Result<Self> {
        let world = World::new(TestUser::Root);
        if !config.is_empty() {
            world.dir("home/.config/stockade");
            world.file("home/.config/stockade/config.toml", config);
        }
        let shared = world.dir("ws/shared");
        for tool in TOOLS {
            let from = lab.text(&format!("$SHARED/{tool}"));
            std::fs::copy(&from, shared.join(tool)).with_context(|| format!("copying {from}"))?;
        }
        let workspace = world.workspace().display().to_string();
        let create: Vec<&str> = ["create", "--copy", &workspace].into_iter().chain(maker.options()).collect();
        let id = maker.run(&world, &create)?.trim().to_owned();
        let has = maker.run(&world, &["exec", "--mode", "never", &id, "--", "/bin/bash", "-c", HAS_TOOLS])?;
        ensure!(has.contains("HAS-TOOLS"), "the image lacks what rows are written with");
        Ok(Self { world, maker, id })
    }

    /// Plays a row.
    fn stands(&self, lab: &Lab, attack: &Attack, own: &str) -> Result<()> {
        let world = World::new(TestUser::Root);
        let text = with_proof(attack, own).replace("$SHARED", SHARED);
        let authority =
            if script(attack, "").trusts_lab { "export CURL_CA_BUNDLE=/workspace/shared/ca.pem\n" } else { "" };
        let text = format!("echo {BEGIN}\n{authority}{}\n", lab.text(&text));
        let (file, report) = (world.file("ws/probe.sh", &text), world.home().join("outcome.json"));
        let inside = format!("/workspace/{}.sh", attack.id);
        let to = format!("{}:{inside}", self.id);
        self.maker.run(&self.world, &["copy", &file.display().to_string(), &to])?;
        let json = format!("--json={}", report.display());
        let program = crate::world::binary();
        let mut words = vec![program.as_str(), "sandbox", "exec", "--mode", "never", &json];
        words.extend(attack.grants.iter().flat_map(|grant| ["--grant", grant]));
        words.extend([self.id.as_str(), "--", "/bin/bash", &inside]);
        let command = self.maker.command(&self.world, &words);
        let seen = lab.watch(world, &command, Some(&report))?;
        ensure!(seen.output.stdout.contains(BEGIN), "nothing ran: {}", seen.output.combined_text());
        let breaches = breaches(attack, &seen);
        ensure!(breaches.is_empty(), "breached:\n{}\n{}", breaches.join("\n"), seen.story());
        let works = attack.works.is_none() || seen.output.stdout.contains("STILL-WORKS");
        ensure!(works, "what is granted does not work: {}", seen.story());
        Ok(())
    }
}
