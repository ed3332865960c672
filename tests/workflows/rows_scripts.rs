//! Languages that are run from their text, and their package managers. Nothing comes from a
//! network.

use crate::workflow::Workflow;

const NPM: Workflow = Workflow { needs: &["npm", "node"], before: OFFLINE, ..Workflow::NEW };
/// As without a network: neither packages nor npm itself are looked up.
const OFFLINE: &str = "printf 'audit=false\\nupdate-notifier=false\\n' >.npmrc";
const PYTHON: Workflow = Workflow { needs: &["python3"], ..Workflow::NEW };
/// A package beside the workspace, with a program, as a directory and as an archive.
const PACKAGE: &str = "printf 'audit=false\\nupdate-notifier=false\\n' >.npmrc; mkdir ../dep; cd ../dep; \
    printf '{\"name\":\"dep\",\"version\":\"1.0.0\",\"bin\":{\"dep\":\"cli.js\"},\"main\":\"index.js\"}' >package.json; \
    printf '#!/usr/bin/env node\\nconsole.log(\"from dep\")\\n' >cli.js; chmod +x cli.js; \
    echo 'module.exports = 42' >index.js; npm pack --silent >/dev/null";
/// A package beside the workspace as an archive that is installed as it is.
const WHEEL: &str = "cat >wheel.py <<'END'
import zipfile
with zipfile.ZipFile('../pkg-1-py3-none-any.whl', 'w') as wheel:
    wheel.writestr('pkg/__init__.py', 'def f(): return 42\\n')
    wheel.writestr('pkg-1.dist-info/METADATA', 'Metadata-Version: 2.1\\nName: pkg\\nVersion: 1\\n')
    wheel.writestr('pkg-1.dist-info/WHEEL', 'Wheel-Version: 1.0\\nGenerator: x\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n')
    wheel.writestr('pkg-1.dist-info/RECORD', '')
END
/usr/bin/python3 wheel.py";

pub const ALL: &[Workflow] = &[
    Workflow {
        id: "npm-init",
        work: "npm init -y >/dev/null; npm pkg set scripts.build='echo built >out' scripts.test='node -e 0'; npm run -s build; npm test -s",
        after: "grep built out",
        ..NPM
    },
    Workflow {
        id: "npm-install",
        before: PACKAGE,
        work: "npm init -y >/dev/null; npm install --silent ../dep/dep-1.0.0.tgz; node -e 'if (require(\"dep\") != 42) throw 1'; rm -rf node_modules; npm ci --silent; npm ls",
        after: "node -e 'require(\"dep\")'; test -e package-lock.json",
        ..NPM
    },
    Workflow {
        id: "npx",
        before: PACKAGE,
        work: "npm init -y >/dev/null; npm install --silent ../dep/dep-1.0.0.tgz; npx --no-install dep | grep 'from dep'; npm exec --no dep",
        after: "test -e node_modules/.bin/dep",
        ..NPM
    },
    Workflow {
        id: "npm-workspaces",
        work: "npm init -y >/dev/null; npm init -y -w packages/a >/dev/null; npm init -y -w packages/b >/dev/null; npm install --silent --offline; npm pack --silent -w packages/a",
        after: "test -L node_modules/a",
        ..NPM
    },
    Workflow {
        id: "python-venv",
        work: "/usr/bin/python3 -m venv .venv; . .venv/bin/activate; python -c 'import sys; assert sys.prefix != sys.base_prefix'; pip list --disable-pip-version-check >/dev/null",
        after: ".venv/bin/python -c 0",
        ..PYTHON
    },
    Workflow {
        id: "pip-install",
        before: WHEEL,
        work: "/usr/bin/python3 -m venv .venv; . .venv/bin/activate; pip install -q --disable-pip-version-check --no-index ../pkg-1-py3-none-any.whl; \
            python -c 'import pkg; assert pkg.f() == 42'; pip uninstall -q -y pkg; pip install -q --disable-pip-version-check --no-index --find-links .. pkg; pip freeze | grep pkg",
        after: ".venv/bin/python -c 'import pkg; assert pkg.f() == 42'",
        ..PYTHON
    },
    Workflow {
        id: "pytest",
        needs: &["pytest"],
        before: "printf 'def test_a(tmp_path):\\n  (tmp_path / \"f\").write_text(\"x\")\\n' >test_a.py",
        work: "pytest -q >/dev/null; /usr/bin/python3 -m pytest -q -p no:cacheprovider >/dev/null; /usr/bin/python3 -m compileall -q .",
        after: "test -e .pytest_cache",
        ..Workflow::NEW
    },
    Workflow {
        id: "python-processes",
        work: "/usr/bin/python3 -c 'import multiprocessing as m\nif __name__ == \"__main__\":\n  with m.Pool(2) as p: assert p.map(abs, [-1, -2]) == [1, 2]\n'",
        refused: Some((stockade_tests::Level::Restricted, "its semaphores lie in /dev/shm, which is the host's there")),
        ..PYTHON
    },
    Workflow {
        id: "node-test",
        before: "printf 'require(\"node:test\")(\"a\", () => {});\\n' >a.test.js",
        work: "node --test >/dev/null; node -p 'process.version' >/dev/null",
        ..NPM
    },
    Workflow {
        id: "archives",
        needs: &["tar", "patch", "diff"],
        before: "mkdir src; seq 100 >src/a; cp -r src new; sed -i 's/^50$/fifty/' new/a",
        work: "diff -ru src new >p.diff || true; tar czf src.tgz src; rm -rf src; tar xzf src.tgz; patch -s -p1 -d src <p.diff; \
            find . -name '*.orig' -delete; sed -i 's/fifty/50/' new/a; install -m 755 new/a out; mktemp >/dev/null",
        after: "grep fifty src/a; test -x out",
        ..Workflow::NEW
    },
];
