//! Languages that are run from their text, and their package managers. Nothing comes from a
//! network.

use stockade_tests::Level;

use crate::way::Way;
use crate::workflow::Workflow;

const NPM: Workflow = Workflow { needs: &["npm", "node"], before: OFFLINE, ..Workflow::NEW };
/// As without a network: neither packages nor npm itself are looked up.
const OFFLINE: &str = "printf 'audit=false\\nupdate-notifier=false\\n' >.npmrc";
const PYTHON: Workflow = Workflow { needs: &["python3"], ..Workflow::NEW };
/// What no grant changes: datagrams have no way out there.
const NO_DATAGRAMS: &str = "its message library makes a UDP socket to read addresses";
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
        refused: &[(Way::Sandboxed(Level::Restricted), "its semaphores lie in /dev/shm, which is the host's there")],
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
    Workflow {
        id: "yarn",
        needs: &["yarn", "npm", "node"],
        before: PACKAGE,
        work: "yarn init -y >/dev/null; yarn add --offline --silent ../dep/dep-1.0.0.tgz; yarn --silent run dep | grep 'from dep'; \
            rm -rf node_modules; yarn install --offline --frozen-lockfile --silent",
        after: "test -e node_modules/dep/index.js; test -e yarn.lock",
        not_as_root: Some("it reads the settings in /root whatever HOME says, and those are hidden"),
        does_without: &["/.yarn"],
        ..Workflow::NEW
    },
    Workflow {
        id: "pnpm",
        needs: &["pnpm", "npm", "node"],
        before: PACKAGE,
        work: "pnpm init >/dev/null; pnpm add --offline --silent ../dep/dep-1.0.0.tgz; pnpm exec dep | grep 'from dep'; rm -rf node_modules; pnpm install --offline --frozen-lockfile --silent",
        after: "test -e node_modules/dep/index.js",
        // It tries from where it could link its store.
        does_without: &["/_tmp_"],
        ..Workflow::NEW
    },
    Workflow {
        id: "uv",
        needs: &["uv", "python3"],
        before: WHEEL,
        work: "export UV_PYTHON_DOWNLOADS=never; uv venv -q -p /usr/bin/python3; uv pip install -q --no-index ../pkg-1-py3-none-any.whl; .venv/bin/python -c 'import pkg; assert pkg.f() == 42'; \
            uv pip freeze -q | grep pkg; uv init -q --bare --no-readme app --offline; cd app; uv lock -q --offline; uv run -q --offline python -c 0",
        after: ".venv/bin/python -c 'import pkg'",
        ..Workflow::NEW
    },
    Workflow {
        id: "poetry",
        needs: &["poetry"],
        work: "poetry init -n -q --name app; poetry lock -n -q; poetry install -n -q --no-root; poetry run python -c 'import sys; assert sys.prefix != sys.base_prefix'",
        after: "test -e poetry.lock",
        does_without: &["/.local/share"],
        ..PYTHON
    },
    Workflow {
        id: "pre-commit",
        needs: &["pre-commit", "git"],
        before: "git init -q; printf 'repos:\\n- repo: local\\n  hooks:\\n  - {id: good, name: good, entry: grep -q good, language: system, files: f}\\n' >.pre-commit-config.yaml; \
            echo good >f; git add .",
        work: "pre-commit run --all-files >/dev/null; git commit -qm checked; echo bad >f; git add f; ! pre-commit run >/dev/null",
        after: "test $(git rev-list --count HEAD) = 1",
        ..Workflow::NEW
    },
    Workflow {
        id: "jupyter",
        needs: &["jupyter-nbconvert"],
        before: "printf '{\"cells\":[{\"cell_type\":\"code\",\"execution_count\":null,\"metadata\":{},\"outputs\":[],\"source\":[\"print(6*7)\"]}],\
            \"metadata\":{\"kernelspec\":{\"display_name\":\"p\",\"language\":\"python\",\"name\":\"python3\"}},\"nbformat\":4,\"nbformat_minor\":4}' >n.ipynb",
        work: "PATH=/usr/bin:/bin jupyter-nbconvert --log-level ERROR --to notebook --execute n.ipynb --output done.ipynb",
        after: "grep 42 done.ipynb",
        refused: &[(Way::Sandboxed(Level::Restricted), NO_DATAGRAMS), (Way::Docker, NO_DATAGRAMS)],
        ..Workflow::NEW
    },
    Workflow {
        id: "headless-browser",
        needs: &["chromium-headless-shell", "python3", "curl"],
        before: "echo '<script>document.title = 6 * 7</script>' >page.html",
        // Rows at the same time, some of them on the host's loopback.
        work: "port=$((20000 + $$ % 10000)); /usr/bin/python3 -m http.server $port --bind 127.0.0.1 >/dev/null 2>&1 & \
            for n in $(seq 100); do ! curl -s http://127.0.0.1:$port/page.html >/dev/null || break; sleep 0.1; done; \
            chromium-headless-shell --no-sandbox --disable-gpu --dump-dom http://127.0.0.1:$port/page.html >got 2>/dev/null; kill $!",
        after: "grep '<title>42' got",
        does_without: &["/oom_score_adj", "/.cache", "fontconfig", "AF_INET6"],
        ..Workflow::NEW
    },
];
