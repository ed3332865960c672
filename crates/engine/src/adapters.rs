//! Implementations of the driver's ports with the real crates: rules, shell, audit log, store.

use std::fs::File;
use std::io::Read;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::SystemTime;

use stockade_audit::AuditLogWriter;
use stockade_backend_api::identity::workspace_identity;
use stockade_model::{
    ApprovalAnswer, ApprovalId, ApprovalScope, Assessment, AttemptPlan, DEFAULT_UNDO_BYTES, Decision, Denial, Digest,
    EffectUse, Event, Grant, GroupOffer, IsolationLevel, PolicyVerdict, Profile, QuestionKind, RawText, RequestCommand,
    RunRequest, SessionId,
};
use stockade_policy::{
    Obligations, PolicyRule, PolicySettings, RequestContext, complete_grants, configured_files, effective_environment,
    is_history, is_registry_settings, may_escalate, resolve_profile, rule_in, written_hooks,
};
use stockade_shell::{CommandClassification, CommandContext, StdinUse};
use stockade_store::{ApprovalStore, Consent};

use crate::core::{AnswerMemo, BoundPlan, ConsentRuling, RememberedAnswer, RunRequirements};
use crate::environment_checks::{self, repository_around};
use crate::held_rules;
use crate::identity::{PlanProgram, identify_program};
use crate::keys::{GrantContext, MemoryKey, QuestionNamespace};
use crate::ports::{
    AnswerMemory, EventRecorder, HeldRule, LookupScope, MemoryError, PersistentAnswers, PlanError, PolicyEngine,
    RecordError,
};

/// Paths at which bash is looked for, to run scripts. The caller's PATH is never used, because the
/// workspace may influence it.
const BASH_PATHS: &[&str] = &["/bin/bash", "/usr/bin/bash", "/usr/local/bin/bash", "/run/current-system/sw/bin/bash"];

/// Largest `/etc/passwd` that is read.
const MAX_PASSWD_BYTES: u64 = 8 << 20;

/// Implementation of `PolicyEngine` by the command's text and the configuration.
#[derive(Clone, Debug)]
pub struct RulePolicyEngine {
    /// The current configuration.
    pub settings: Arc<PolicySettings>,
    /// True if the request is the user's own command line; see [`rule_in`].
    pub by_person: bool,
    /// See [`CommandContext::neutralised`]. True except in tests: every plan made here carries the
    /// required settings.
    pub sanitized: bool,
    /// True if writes in the workspace are staged, whatever the profile sets.
    pub stage: bool,
    /// True if changes in the workspace can be undone, whatever the profile sets.
    pub undo: bool,
    /// True if the backend can keep the changes of a run, because it has a directory for them.
    pub can_keep: bool,
    /// True if reads are recorded.
    pub trace: bool,
    /// For a command in a persistent sandbox: its workspace, on the host.
    pub inside: Option<PathBuf>,
    /// Name of the backend that builds sandboxes.
    pub sandbox_backend: &'static str,
    /// Name of the backend without a sandbox.
    pub host_backend: &'static str,
}

impl RulePolicyEngine {
    /// Creates the policy engine of one configuration and the native backend.
    pub fn new(settings: Arc<PolicySettings>, by_person: bool) -> Self {
        Self {
            settings,
            by_person,
            sanitized: true,
            stage: false,
            undo: false,
            can_keep: false,
            trace: false,
            inside: None,
            sandbox_backend: "native",
            host_backend: "host",
        }
    }

    /// Returns the assessment of a request's text. An `allow` can require settings of the run and
    /// properties of a repository. If they are not met, the assessment is made without those
    /// settings.
    pub fn assess_request(&self, request: &RunRequest) -> Assessment {
        // Files in a persistent sandbox cannot be examined from here.
        let classification = self.classify_request(request, self.sanitized && self.inside.is_none());
        let held =
            environment_checks::are_conditions_met(&classification.neutralisation, request, self.settings.home());
        if held { classification.assessment } else { self.classify_request(request, false).assessment }
    }

    fn classifier_context(&self, request: &RunRequest, sanitized: bool) -> CommandContext {
        CommandContext {
            cwd: request.cwd.clone(),
            home: self.settings.home().into(),
            workspace: request.workspace.clone(),
            sanitized,
        }
    }

    /// Returns how the command would use its standard input.
    fn stdin_use(&self, request: &RunRequest) -> StdinUse {
        stockade_shell::stdin_use(&request.command, &self.classifier_context(request, self.sanitized))
    }

    fn classify_request(&self, request: &RunRequest, sanitized: bool) -> CommandClassification {
        let context = self.classifier_context(request, sanitized);
        match &request.command {
            RequestCommand::Script(script) => stockade_shell::classify_script(script.as_bytes(), &context),
            RequestCommand::Argv(words) => stockade_shell::classify_argv(words, &context),
        }
    }

    /// Returns the question that the caller's own approval answered: it exists without the
    /// approval, and does not exist with it.
    fn answered_by_caller(
        &self,
        request: &RunRequest,
        assessment: &Assessment,
        requested: &[QuestionKind],
    ) -> Option<QuestionKind> {
        request.caller_approval.as_ref()?;
        let is_run = |kind: &QuestionKind| matches!(kind, QuestionKind::Run { .. });
        if requested.iter().any(is_run) {
            return None;
        }
        let bare = RunRequest { caller_approval: None, ..request.clone() };
        self.rule_request(&bare, assessment).questions.into_iter().find(is_run)
    }

    fn rule_request(&self, request: &RunRequest, assessment: &Assessment) -> stockade_policy::PolicyRuling {
        rule_in(&self.settings, request, assessment, self.by_person, &self.current_circumstances())
    }

    /// Returns user and time, as far as a rule requires them, and whether the sandbox can keep
    /// changes.
    fn current_circumstances(&self) -> RequestContext {
        let requested = |asks: fn(&PolicyRule) -> bool| self.settings.rules().any(asks);
        let now_ms = || SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map(|now| now.as_millis());
        RequestContext {
            user: if requested(PolicyRule::asks_user) { user_name() } else { None },
            tool: None,
            keeps_changes: self.can_keep.then_some(self.undo || self.stage),
            time_ms: if requested(PolicyRule::asks_time) {
                now_ms().ok().and_then(|ms| ms.try_into().ok())
            } else {
                None
            },
        }
    }

    /// Refuses options that need a sandbox for a profile without one.
    fn require_sandbox(&self, profile: &Profile) -> Result<(), PlanError> {
        let requirements =
            [(self.stage, "staged", "--stage"), (self.undo, "undone", "--undo"), (self.trace, "traced", "--trace")];
        match requirements.into_iter().find(|(requirements, ..)| *requirements && !profile.sandboxed) {
            Some((_, what, option)) => Err(PlanError::new(format!(
                "the profile `{}` has no sandbox, and without one nothing is {what}\n\
                 hint: leave {option} out, or name a profile with a sandbox",
                profile.name
            ))),
            None => Ok(()),
        }
    }
}

impl PolicyEngine for RulePolicyEngine {
    fn assess_request(&self, request: &RunRequest) -> Assessment {
        Self::assess_request(self, request)
    }

    fn apply_rules(&self, request: &RunRequest, assessment: &Assessment) -> ConsentRuling {
        let ruling = self.rule_request(request, assessment);
        let by_caller = match ruling.decision.verdict {
            PolicyVerdict::Deny => None,
            PolicyVerdict::Allow | PolicyVerdict::Ask => {
                self.answered_by_caller(request, assessment, &ruling.questions)
            }
        };
        let gives_powers = held_rules::can_give_powers(&self.settings);
        ConsentRuling {
            decision: ruling.decision,
            questions: ruling.questions,
            by_caller,
            unhonoured: Vec::new(),
            gives_powers,
            requirements: run_requirements(request, &ruling.obligations),
        }
    }

    fn make_plan(&self, request: &RunRequest, attempt: u32, grants: &[Grant]) -> Result<BoundPlan, PlanError> {
        let mut profile = resolve_profile(&self.settings, &request.profile, request.workspace.as_path(), grants)
            .map_err(PlanError::new)?;
        if self.settings.rules().any(PolicyRule::has_limits) {
            self.rule_request(request, &self.assess_request(request)).obligations.lower_limits(&mut profile);
        }
        profile.limits.lower_to(&request.limits);
        for grant in grants {
            if let Grant::Limit(limit, amount) = grant {
                profile.limits.raise_limit(*limit, *amount);
            }
        }
        self.settings.bind_host_rules(&mut profile, &held_rules::act_context(request), &self.current_circumstances());
        self.require_sandbox(&profile)?;
        profile.filesystem.stage |= self.stage;
        if self.undo {
            profile.filesystem.undo_bytes.get_or_insert(DEFAULT_UNDO_BYTES);
        }
        profile.filesystem.trace = self.trace;
        let argv = match &request.command {
            RequestCommand::Argv(argv) => argv.clone(),
            RequestCommand::Script(script) => vec![find_shell()?, "-c".into(), script.clone()],
        };
        let (level, backend) = if profile.sandboxed {
            (request.level, self.sandbox_backend)
        } else {
            (IsolationLevel::None, self.host_backend)
        };
        let mut environment = effective_environment(&profile, &request.environment);
        let classification = self.classify_request(request, self.sanitized);
        environment_checks::apply_variables(
            &classification.neutralisation,
            request,
            self.settings.home(),
            &mut environment,
        );
        let mut effects: Vec<Grant> = classification.effects.into_iter().map(EffectUse::into_grant).collect();
        effects.extend(configured_files(request, &classification.assessment));
        effects.extend(written_hooks(request, &classification.assessment));
        let plan = AttemptPlan {
            request: request.id.clone(),
            attempt,
            argv,
            environment,
            cwd: request.cwd.clone(),
            workspace: request.workspace.clone(),
            profile,
            grants: grants.to_vec(),
            effects,
            level,
            backend: backend.to_owned(),
        };
        let program = PlanProgram {
            argv: &plan.argv,
            command: &request.command,
            environment: &plan.environment,
            cwd: plan.cwd.as_path(),
        };
        let found = identify_program(&program, &classification.assessment, self.stdin_use(request));
        let mut planned = BoundPlan::new(plan, found.digest).map_err(PlanError::new)?;
        // The programs of a persistent sandbox are not the host's, and its commands can change
        // them.
        planned.is_identified = found.is_whole && self.inside.is_none();
        planned.workspace = workspace_identity(self.inside.as_deref().unwrap_or(request.workspace.as_path()));
        Ok(planned)
    }

    fn escalation_powers(&self, request: &RunRequest, plan: &AttemptPlan, grant: &Grant) -> Vec<Grant> {
        let home = self.settings.home();
        let is_read = matches!(grant, Grant::Read(_));
        if grant.path().is_some_and(|path| is_history(path, home) || is_read && is_registry_settings(path, home)) {
            return Vec::new();
        }
        let powers = complete_grants(&plan.profile, std::slice::from_ref(grant));
        let may = |power: &Grant| {
            may_escalate(&self.settings, request, power, self.by_person)
                && !held_rules::is_power_denied(&self.settings, request, power, &self.current_circumstances())
        };
        if powers.iter().all(may) { powers } else { Vec::new() }
    }

    fn held_rule(&self, request: &RunRequest, plan: &AttemptPlan, denial: &Denial) -> Option<HeldRule> {
        held_rules::rule_held_call(&self.settings, request, plan, denial, &self.current_circumstances())
    }

    fn governed_refusal(&self, request: &RunRequest, grant: &Grant) -> Option<Decision> {
        held_rules::governed_refusal(&self.settings, request, grant)
    }

    fn is_guarded(&self, grant: &Grant) -> bool {
        self.settings.find_guarded_name(grant).is_some()
    }

    fn directory_powers(&self, request: &RunRequest, plan: &AttemptPlan, grant: &Grant) -> Vec<Grant> {
        let workspace = request.workspace.as_path();
        let around = match grant {
            // Some rule may be about content of the directory.
            Grant::Write(_) if self.settings.rules().any(PolicyRule::guards_files) => None,
            Grant::Write(file) => {
                // A part of another repository is of little use by itself.
                let whole = repository_around(file).filter(|whole| !whole.starts_with(workspace));
                let inside = whole.map_or_else(|| file.clone(), |whole| whole.join("HEAD"));
                self.settings.grantable_directory(workspace, &plan.profile, &inside).map(Grant::Write)
            }
            Grant::Connect(targets) => self.settings.grantable_siblings(&plan.profile, targets).map(Grant::Connect),
            _ => None,
        };
        around.map_or_else(Vec::new, |around| self.escalation_powers(request, plan, &around))
    }

    fn host_group(&self, request: &RunRequest, plan: &AttemptPlan, grant: &Grant) -> Option<GroupOffer> {
        let group = self.settings.grantable_group(&plan.profile, &grant.targets()?.target()?)?;
        let grants: Vec<Grant> = group.hosts.iter().cloned().map(Grant::Connect).collect();
        let may = |grant: &Grant| !self.escalation_powers(request, plan, grant).is_empty();
        grants.iter().all(may).then(|| GroupOffer { name: group.name.clone(), grants })
    }

    fn policy_digest(&self, request: &RunRequest) -> Digest {
        // The time-out of a question does not change any approved power.
        let (mut text, mut ends) = (Vec::new(), vec![0]);
        self.settings.explained_values(&request.profile, |key, value| {
            if key != "approval_timeout" {
                for field in [key, value] {
                    text.extend_from_slice(field.as_bytes());
                    ends.push(text.len());
                }
            }
        });
        Digest::of_fields("stockade-policy-1", ends.windows(2).map(|field| &text[field[0]..field[1]]))
    }
}

/// Returns the changes that the rules make to the requested run.
fn run_requirements(request: &RunRequest, wants: &Obligations) -> Option<RunRequirements> {
    if wants.is_empty() {
        return None;
    }
    let with = wants.apply_to_request(request);
    let timeout_ms = match (request.timeout_ms, wants.limits.wall_ms) {
        (Some(requested), Some(limit)) => Some(requested.min(limit)),
        (requested, limit) => requested.or(limit),
    };
    Some(RunRequirements { profile: with.profile, grants: with.grants, timeout_ms })
}

/// Returns the name of the user that owns this process (proc(5), passwd(5)). The environment is not
/// trusted for this.
pub fn user_name() -> Option<String> {
    let uid = std::fs::metadata("/proc/self").ok()?.uid().to_string();
    let mut passwd = String::new();
    File::open("/etc/passwd").ok()?.take(MAX_PASSWD_BYTES).read_to_string(&mut passwd).ok()?;
    passwd.lines().find_map(|line| {
        let mut fields = line.split(':');
        let (name, id) = (fields.next()?, fields.nth(1)?);
        (id == uid).then(|| name.to_owned())
    })
}

fn find_shell() -> Result<RawText, PlanError> {
    let found = BASH_PATHS.iter().find(|path| Path::new(path).exists()).map(|path| RawText::from(*path));
    found.ok_or_else(|| {
        let paths = BASH_PATHS.join(", ");
        PlanError::new(format!(
            "there is no bash in {paths}\nhint: install bash, or give the command as words after `--`"
        ))
    })
}

impl EventRecorder for AuditLogWriter {
    fn record_events(&self, events: &[Event]) -> Result<(), RecordError> {
        self.append_batch(events).map(drop).map_err(|error| RecordError(error.to_string()))
    }

    fn commit_events(&self) -> Result<(), RecordError> {
        AuditLogWriter::commit_lines(self).map_err(|error| RecordError(error.to_string()))
    }
}

/// Memory that uses the store at a path. Most runs remember nothing and should not pay for a database, so it
/// is opened at the first look-up and created at the first answer.
#[derive(Debug)]
pub struct StoreMemory {
    path: PathBuf,
    open: Mutex<Option<Arc<ApprovalStore>>>,
}

impl StoreMemory {
    /// Creates the memory in the store at `path`, which need not exist yet.
    pub fn new(path: PathBuf) -> Self {
        Self { path, open: Mutex::default() }
    }

    fn open_or_create(&self) -> Result<Arc<ApprovalStore>, MemoryError> {
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(store) = open.as_ref() {
            return Ok(Arc::clone(store));
        }
        let store = ApprovalStore::open(&self.path).map_err(memory_error)?;
        Ok(Arc::clone(open.insert(Arc::new(store))))
    }

    /// Opens the store if it exists. If its existence cannot be determined, the open reports the
    /// reason.
    fn open_existing(&self) -> Result<Option<Arc<ApprovalStore>>, MemoryError> {
        if self.path.try_exists().is_ok_and(|exists| !exists) { Ok(None) } else { self.open_or_create().map(Some) }
    }
}

fn find_record(
    store: &ApprovalStore,
    key: &MemoryKey,
    scope: LookupScope<'_>,
) -> Result<Option<stockade_store::ApprovalRecord>, MemoryError> {
    store.look_up_answer(store_namespace(key.namespace), &key.digest, scope.session, scope.now_ms).map_err(memory_error)
}

fn is_refused(
    store: &ApprovalStore,
    context: &GrantContext,
    grant: &Grant,
    scope: LookupScope<'_>,
) -> Result<bool, MemoryError> {
    for namespace in [QuestionNamespace::Grant, QuestionNamespace::Escalate] {
        let key = context.refusal_key(namespace, std::slice::from_ref(grant));
        if find_record(store, &key, scope)?.is_some_and(|found| found.consent == Consent::Denied) {
            return Ok(true);
        }
    }
    Ok(false)
}

impl AnswerMemory for StoreMemory {
    fn look_up_answer(&self, key: &MemoryKey, scope: LookupScope<'_>) -> Result<Option<RememberedAnswer>, MemoryError> {
        let Some(store) = self.open_existing()? else { return Ok(None) };
        let Some(found) = find_record(&store, key, scope)? else { return Ok(None) };
        let answer = match found.consent {
            Consent::Approved => ApprovalAnswer::Approved(found.scope),
            Consent::Denied => ApprovalAnswer::Denied(found.scope),
        };
        Ok(Some(RememberedAnswer { answer, id: found.id.to_string() }))
    }

    fn remember_answer(&self, memo: &AnswerMemo, at: LookupScope<'_>) -> Result<(), MemoryError> {
        let (consent, scope) = match memo.answer {
            ApprovalAnswer::Approved(scope) | ApprovalAnswer::Group(scope) => (Consent::Approved, scope),
            ApprovalAnswer::Denied(scope) => (Consent::Denied, scope),
            ApprovalAnswer::Abort | ApprovalAnswer::TimedOut => return Ok(()),
        };
        let remembered = stockade_store::ApprovalRecord {
            id: ApprovalId::from_random(random_bytes()?),
            namespace: store_namespace(memo.key.namespace),
            digest: memo.key.digest.clone(),
            question: memo.subject.as_str().into(),
            grants: memo.grants.clone(),
            consent,
            scope,
            session: at.session.cloned(),
            by: memo.by.clone(),
            created_ms: at.now_ms,
            request: memo.request.clone(),
            revoked_ms: None,
            ended_ms: None,
        };
        self.open_or_create()?.remember_answer(&remembered).map_err(memory_error)
    }

    fn persistent_answers(
        &self,
        context: &GrantContext,
        scope: LookupScope<'_>,
    ) -> Result<PersistentAnswers, MemoryError> {
        let mut answers = PersistentAnswers::default();
        let Some(store) = self.open_existing()? else { return Ok(answers) };
        let listed = store.list_answers().map_err(memory_error)?;
        for known in listed.into_iter().filter(|known| known.in_force(scope.now_ms)) {
            if known.consent == Consent::Denied {
                answers.refused.extend(refused_by(&known, context, scope.session));
                continue;
            }
            let grant = match known.grants.as_slice() {
                [grant] if known.namespace == store_namespace(QuestionNamespace::Grant) => grant,
                _ => continue,
            };
            // Is it bound to this workspace, profile, level, policy and user?
            if context.approval_key(QuestionNamespace::Grant, grant).digest != known.digest {
                continue;
            }
            let reaches = match known.scope {
                ApprovalScope::Session => known.session.is_some() && known.session.as_ref() == scope.session,
                ApprovalScope::Until(_) | ApprovalScope::Always => true,
                // Each use of a counted answer is taken when the power is requested.
                ApprovalScope::Times(_) => {
                    answers.counted = true;
                    false
                }
                ApprovalScope::Once => false,
            };
            if reaches && !answers.grants.contains(grant) && !is_refused(&store, context, grant, scope)? {
                answers.grants.push(grant.clone());
            }
        }
        answers.grants.sort();
        Ok(answers)
    }
}

/// Returns the powers that a refusal names, if it applies here.
fn refused_by(
    known: &stockade_store::ApprovalRecord,
    context: &GrantContext,
    session: Option<&SessionId>,
) -> Vec<Grant> {
    let is_here = |namespace| context.refusal_key(namespace, &known.grants).digest == known.digest;
    let elsewhere = known.scope == ApprovalScope::Session && known.session.as_ref() != session;
    let holds = [QuestionNamespace::Grant, QuestionNamespace::Escalate].into_iter().any(is_here) && !elsewhere;
    if holds { known.grants.clone() } else { Vec::new() }
}

fn store_namespace(namespace: QuestionNamespace) -> stockade_store::ApprovalNamespace {
    match namespace {
        QuestionNamespace::Run => stockade_store::ApprovalNamespace::Run,
        QuestionNamespace::Grant => stockade_store::ApprovalNamespace::Grant,
        QuestionNamespace::Escalate => stockade_store::ApprovalNamespace::Escalate,
    }
}

fn memory_error(error: impl std::error::Error) -> MemoryError {
    MemoryError(error.to_string())
}

/// Reads from the kernel's generator (urandom(4)).
fn random_bytes() -> Result<[u8; 16], MemoryError> {
    let mut bytes = [0; 16];
    File::open("/dev/urandom")
        .and_then(|mut random| random.read_exact(&mut bytes))
        .map_err(|error| MemoryError(format!("no random bytes: {error}")))?;
    Ok(bytes)
}
