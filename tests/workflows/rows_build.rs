//! What is built, with compilers and their package managers. Nothing comes from a network.

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
        does_without: &["/tmp/hsperfdata_", "/tmp/p.jar"],
        ..Workflow::NEW
    },
    Workflow {
        id: "maven",
        needs: &["mvn", "mh_make"],
        before: "mkdir -p src/main/java; printf 'public class P { public static void main(String[] a) { System.out.println(\"built\"); } }\\n' >src/main/java/P.java; \
            printf '<project><modelVersion>4.0.0</modelVersion><groupId>x</groupId><artifactId>p</artifactId><version>1</version><properties>\
            <maven.compiler.source>11</maven.compiler.source><maven.compiler.target>11</maven.compiler.target>\
            <project.build.sourceEncoding>UTF-8</project.build.sourceEncoding></properties></project>\\n' >pom.xml",
        work: "mvn -q -o -Dmaven.repo.local=/usr/share/maven-repo package",
        after: "java -cp target/p-1.jar P | grep built",
        does_without: &["/tmp/hsperfdata_"],
        ..Workflow::NEW
    },
    Workflow {
        id: "typescript",
        needs: &["tsc", "node"],
        before: "printf 'export const x: number = 42;\\n' >x.ts; printf 'import { x } from \"./x\";\\nconsole.log(x);\\n' >a.ts",
        work: "tsc --init >/dev/null; tsc; node a.js | grep 42; tsc --noEmit --incremental false",
        after: "test -e x.js",
        ..Workflow::NEW
    },
];
