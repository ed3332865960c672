//! What is built, with compilers and their package managers. Nothing comes from a network.

use stockade_tests::Level;

use crate::workflow::Workflow;

const CARGO: Workflow = Workflow { needs: &["cargo"], ..Workflow::NEW };
const MAKE: &str = "printf 'all: p\\np: p.c\\n\\tcc -O1 -o p p.c\\ntest: p\\n\\t./p\\nclean:\\n\\trm -f p\\n' >Makefile; \
    printf '#include <stdio.h>\\nint main(void){puts(\"built\");return 0;}\\n' >p.c";
const CRATE: &str = "cargo new -q --vcs none --lib one; cargo new -q --vcs none --bin two; \
    printf '[workspace]\\nmembers=[\"one\",\"two\"]\\nresolver=\"2\"\\n' >Cargo.toml";

pub const ALL: &[Workflow] = &[
    Workflow {
        id: "cargo-new",
        work: "cargo new -q app; cd app; cargo build -q --offline; cargo run -q --offline",
        after: "cd app; target/debug/app; git log 2>&1 | grep 'does not have any commits'",
        ..CARGO
    },
    Workflow {
        id: "cargo-test",
        before: CRATE,
        work: "cargo build -q --offline; cargo test -q --offline; cargo check -q --offline; cargo doc -q --offline --no-deps; cargo clean -q",
        after: "test ! -e target/debug; test -e Cargo.lock",
        ..CARGO
    },
    Workflow {
        id: "cargo-add",
        before: CRATE,
        work: "cd two; cargo add -q --offline --path ../one; cargo build -q --offline; cargo tree -q --offline",
        after: "grep one two/Cargo.toml",
        ..CARGO
    },
    Workflow {
        id: "cargo-install",
        before: CRATE,
        work: "cargo install -q --offline --path two --root out",
        after: "test -x out/bin/two",
        ..CARGO
    },
    Workflow {
        id: "make",
        needs: &["make", "cc"],
        before: MAKE,
        work: "make -s; make -s test; make -s clean; make -s",
        after: "./p",
        ..Workflow::NEW
    },
    Workflow {
        id: "cmake",
        needs: &["cmake", "cc", "make"],
        before: "printf 'cmake_minimum_required(VERSION 3.10)\\nproject(p C)\\nadd_executable(p p.c)\\nenable_testing()\\nadd_test(NAME p COMMAND p)\\n' >CMakeLists.txt; \
            printf 'int main(void){return 0;}\\n' >p.c",
        work: "cmake -S . -B build >/dev/null; cmake --build build >/dev/null; ctest --test-dir build >/dev/null",
        after: "build/p",
        ..Workflow::NEW
    },
    Workflow {
        id: "go",
        needs: &["go"],
        work: "go mod init example.invalid/p 2>/dev/null; \
            printf 'package main\\nfunc main() { println(Sum(1, 2)) }\\nfunc Sum(a, b int) int { return a + b }\\n' >main.go; \
            printf 'package main\\nimport \"testing\"\\nfunc TestSum(t *testing.T) { if Sum(1, 2) != 3 { t.Fail() } }\\n' >main_test.go; \
            go vet ./...; go build; go test ./...; go run .",
        after: "./p",
        ..Workflow::NEW
    },
    Workflow {
        id: "java",
        needs: &["javac", "java", "jar"],
        before: "printf 'public class P { public static void main(String[] a) { System.out.println(\"built\"); } }\\n' >P.java",
        work: "javac -d out P.java; jar cfe p.jar P -C out .; java -jar p.jar",
        after: "java -jar p.jar | grep built",
        refused: Some((Level::Restricted, "Java writes to /tmp, which is the host's there")),
        ..Workflow::NEW
    },
];
