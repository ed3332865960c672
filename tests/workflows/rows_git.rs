//! What is done with git.

use crate::workflow::Workflow;

const NEW: Workflow = Workflow { needs: &["git"], ..Workflow::NEW };
/// A repository with two commits on two branches.
const REPOSITORY: &str = "git init -q .; echo one >a; git add a; git commit -qm one; git checkout -qb side; \
    echo side >b; git add b; git commit -qm side; git checkout -q main; echo two >>a; git commit -qam two";
/// The same and a bare one beside the workspace, its origin.
const WITH_ORIGIN: &str = "git init -q .; echo one >a; git add a; git commit -qm one; \
    git clone -q --bare . ../origin.git; git remote add origin ../origin.git; git fetch -q; \
    git branch -q --set-upstream-to=origin/main main; \
    git clone -q ../origin.git ../other; cd ../other; echo two >>a; git commit -qam two; git push -q";
/// A repository beside the workspace.
const BESIDE: &str = "git init -q ../library; cd ../library; echo code >code; git add code; git commit -qm code";

pub const ALL: &[Workflow] = &[
    Workflow {
        id: "git-init",
        before: "echo x >a",
        work: "git init -q; git add a; git commit -qm one",
        after: "test \"$(git log --format=%s)\" = one; git status --short",
        ..NEW
    },
    Workflow {
        id: "git-commit",
        before: REPOSITORY,
        work: "echo three >>a; git add a; git commit -qm three; git commit -q --amend -m changed; git tag v1; git show --stat HEAD >/dev/null",
        after: "test \"$(git log -1 --format=%s v1)\" = changed",
        ..NEW
    },
    Workflow {
        id: "git-clone",
        before: BESIDE,
        work: "git clone -q ../library mine; git clone -q --depth 1 file://$(cd ../library; pwd) shallow; cd mine; git log --oneline",
        after: "cd mine; git status --short; test \"$(git remote)\" = origin; git fsck",
        ..NEW
    },
    Workflow {
        id: "git-merge",
        before: REPOSITORY,
        work: "git merge -q -m merged side",
        after: "test -e b; test $(git rev-list --count HEAD) = 4",
        ..NEW
    },
    Workflow {
        id: "git-rebase",
        before: REPOSITORY,
        work: "git checkout -q side; git rebase -q main",
        after: "test \"$(git log --format=%s)\" = \"$(printf 'side\\ntwo\\none')\"",
        ..NEW
    },
    Workflow {
        id: "git-stash",
        before: REPOSITORY,
        work: "echo changed >>a; git stash -q; git stash list; git stash pop -q",
        after: "grep changed a",
        ..NEW
    },
    Workflow {
        id: "git-branch",
        before: WITH_ORIGIN,
        work: "git checkout -qb topic --track origin/main; git branch -q -m topic renamed; git branch -q copy; git branch -q -D copy",
        after: "test \"$(git rev-parse --abbrev-ref renamed@{upstream})\" = origin/main",
        ..NEW
    },
    Workflow {
        id: "git-remote",
        before: BESIDE,
        work: "git init -q; git remote add up ../library; git fetch -q up; git remote rename up upstream; git merge -q upstream/main",
        after: "test -e code; test \"$(git remote)\" = upstream",
        ..NEW
    },
    Workflow {
        id: "git-pull",
        before: WITH_ORIGIN,
        work: "git pull -q --ff-only; git fetch -q --prune; git log --oneline origin/main >/dev/null",
        after: "grep two a",
        ..NEW
    },
    Workflow {
        id: "git-worktree",
        before: REPOSITORY,
        work: "git worktree add -q trees/side side; cd trees/side; echo more >>b; git commit -qam more; cd ../..; git worktree list; git worktree remove trees/side",
        after: "test \"$(git log -1 --format=%s side)\" = more; test ! -e trees/side; git worktree prune",
        ..NEW
    },
    Workflow {
        id: "git-submodule",
        before: BESIDE,
        work: "git init -q; export GIT_ALLOW_PROTOCOL=file; git submodule --quiet add ../library library; git commit -qm library; \
            git submodule --quiet update --init; git submodule status",
        after: "grep code library/code; git submodule status",
        ..NEW
    },
    Workflow {
        id: "git-bisect",
        before: REPOSITORY,
        work: "for i in 1 2 3 4 5; do echo $i >n; git add n; git commit -qm $i; done; \
            git bisect start HEAD HEAD~5; git bisect run sh -c 'test ! -e n || test $(cat n) -lt 3'; git bisect reset",
        after: "git status --short",
        ..NEW
    },
    Workflow {
        id: "git-undo",
        before: REPOSITORY,
        work: "echo x >>a; git restore a; git reset -q --hard HEAD~1; git cherry-pick side; git revert --no-edit HEAD; git clean -fdxq; git gc -q",
        after: "git fsck; test ! -e b",
        ..NEW
    },
    Workflow {
        id: "git-settings",
        before: REPOSITORY,
        work: "git config user.name Other; git config pull.rebase true; git config core.autocrlf input; git commit -q --allow-empty -m as; git config --unset pull.rebase",
        after: "test \"$(git log -1 --format=%an)\" = Other; test -z \"$(git config pull.rebase)\"",
        ..NEW
    },
    Workflow {
        id: "git-large-files",
        needs: &["git", "git-lfs"],
        before: "git init -q; git lfs install --local >/dev/null",
        work: "git lfs track '*.bin' >/dev/null; head -c 100000 /dev/zero >a.bin; git add .; git commit -qm large; git lfs ls-files",
        after: "git lfs ls-files | grep a.bin",
        ..NEW
    },
];
