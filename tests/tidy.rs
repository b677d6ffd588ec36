//! Keeps the house in order: the dependency matrix, where unsafe code and serialisation may stand, and that documents
//! and files agree.

#![allow(clippy::unwrap_used, clippy::panic)]

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn read(path: impl AsRef<Path>) -> String {
    let path = root().join(path);
    fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

fn manifest(path: &str) -> toml::Table {
    read(path).parse().unwrap_or_else(|e| panic!("{path}: {e}"))
}

fn dependencies(manifest: &toml::Table, section: &str) -> BTreeSet<String> {
    let targets = manifest.get("target").and_then(|t| t.as_table()).into_iter().flat_map(|t| t.values());
    let tables = std::iter::once(manifest.get(section)).chain(targets.map(|t| t.get(section)));
    tables.flatten().filter_map(|d| d.as_table()).flat_map(|d| d.keys().cloned()).collect()
}

fn rust_files(dir: &Path, found: &mut Vec<PathBuf>) {
    let Ok(entries) = fs::read_dir(dir) else { return };
    for entry in entries.flatten() {
        let path = entry.path();
        if path.is_dir() {
            rust_files(&path, found);
        } else if path.extension().is_some_and(|e| e == "rs") {
            found.push(path);
        }
    }
}

fn sources(dir: &str) -> Vec<(String, String)> {
    let mut files = Vec::new();
    rust_files(&root().join(dir), &mut files);
    files.sort();
    files
        .into_iter()
        .map(|p| {
            let name = p.strip_prefix(root()).unwrap_or(&p).to_string_lossy().replace('\\', "/");
            (name, read(&p))
        })
        .collect()
}

/// crate → crates of the house that it may use.
const MATRIX: [(&str, &[&str]); 6] = [
    ("graph", &[]),
    ("alloc", &["graph"]),
    ("backends", &["graph", "alloc"]),
    ("sched", &["graph", "alloc", "backends"]),
    ("models", &["graph"]),
    ("cudasim", &[]),
];

#[test]
fn no_arrow_runs_against_the_crate_order() {
    let mut seen = 0;
    for entry in fs::read_dir(root().join("crates")).unwrap().flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        let allowed =
            MATRIX.iter().find(|(n, _)| *n == name).unwrap_or_else(|| panic!("crates/{name} is not in the matrix")).1;
        let manifest = manifest(&format!("crates/{name}/Cargo.toml"));
        for section in ["dependencies", "build-dependencies"] {
            for dep in dependencies(&manifest, section) {
                let Some(house) = dep.strip_prefix("loadmaster-") else { continue };
                assert!(allowed.contains(&house), "crates/{name} may not depend on {dep}");
            }
        }
        seen += 1;
    }
    assert!(seen >= 5);
}

#[test]
fn the_program_contains_no_simulated_driver_and_needs_no_compiler_of_another_language() {
    for path in ["Cargo.toml", "crates/backends/Cargo.toml"] {
        let manifest = manifest(path);
        assert!(dependencies(&manifest, "dev-dependencies").contains("loadmaster-cudasim"), "{path}: tests want it");
        assert!(!dependencies(&manifest, "dependencies").contains("loadmaster-cudasim"), "{path}");
    }
    for (name, _) in MATRIX.iter().filter(|(name, _)| *name != "cudasim") {
        let built = dependencies(&manifest(&format!("crates/{name}/Cargo.toml")), "build-dependencies");
        assert!(built.is_empty(), "crates/{name} builds with {built:?}");
    }
}

#[test]
fn serialisation_and_http_stay_at_the_edge() {
    const EDGE: [&str; 6] = ["serde", "serde_json", "tokio", "axum", "hyper", "toml"];
    for (name, _) in MATRIX {
        let path = format!("crates/{name}/Cargo.toml");
        if name == "graph" || !root().join(&path).exists() {
            continue;
        }
        let used = dependencies(&manifest(&path), "dependencies");
        for dep in EDGE {
            assert!(!used.contains(dep), "crates/{name} depends on {dep}");
        }
    }
    for (file, text) in sources("crates/graph/src") {
        assert!(file.starts_with("crates/graph/src/file") || !text.contains("serde"), "{file} mentions serde");
    }
}

#[test]
fn unsafe_code_stands_in_backends_only_and_says_why_it_is_sound() {
    for dir in ["crates", "src", "tests", "benches"] {
        for (file, text) in sources(dir) {
            // benches/peer calls ggml, in a workspace of its own.
            let home = ["crates/backends/", "crates/cudasim/", "benches/peer/"].iter().any(|d| file.starts_with(d));
            let code = text.lines().filter(|l| !l.trim_start().starts_with("//"));
            let found =
                code.clone().any(|l| l.contains("unsafe {") || l.contains("unsafe fn") || l.contains("unsafe impl"));
            assert!(home || !found || file == "tests/tidy.rs", "{file} holds unsafe code");
        }
    }
    for (file, text) in ["crates/backends/src", "crates/cudasim/src"].into_iter().flat_map(sources) {
        let lines: Vec<&str> = text.lines().collect();
        for (i, line) in lines.iter().enumerate() {
            let block = line.contains("unsafe {") || line.contains("unsafe impl");
            if !block || line.trim_start().starts_with("//") {
                continue;
            }
            // The reason stands above the statement that the block is part of.
            let reason = lines[i.saturating_sub(REASON_WITHIN)..=i].iter().any(|l| l.contains("SAFETY:"));
            assert!(reason, "{file}:{}: no `SAFETY:` near this unsafe code", i + 1);
        }
    }
}

/// Lines above an unsafe block in which its reason is looked for.
const REASON_WITHIN: usize = 8;

#[test]
fn every_dependency_has_its_line() {
    let documented = read("docs/DEPENDENCIES.md");
    let mut manifests = vec!["Cargo.toml".to_owned()];
    manifests.extend(MATRIX.iter().map(|(n, _)| format!("crates/{n}/Cargo.toml")));
    for path in manifests.iter().filter(|p| root().join(p).exists()) {
        let manifest = manifest(path);
        for section in ["dependencies", "dev-dependencies", "build-dependencies"] {
            for dep in dependencies(&manifest, section) {
                let house = dep.starts_with("loadmaster-");
                assert!(
                    house || documented.contains(&format!("`{dep}`")),
                    "{dep} ({path}) has no line in docs/DEPENDENCIES.md"
                );
            }
        }
    }
}

/// Functions that follow a `#[test]`.
fn test_names(text: &str) -> Vec<String> {
    let after = text.split("#[test]").skip(1);
    let named = after.filter_map(|rest| rest.split_once("fn ")?.1.split_once('(').map(|(name, _)| name.to_owned()));
    named.collect()
}

#[test]
fn every_invariant_names_a_test_that_exists() {
    let text = read("docs/ARCHITECTURE.md");
    let tests: BTreeSet<String> =
        ["tests", "crates", "src"].iter().flat_map(|d| sources(d)).flat_map(|(_, text)| test_names(&text)).collect();
    let mut invariants = 0;
    for line in text.lines().filter(|l| l.starts_with("| I")) {
        invariants += 1;
        let named: Vec<&str> = line.split('`').skip(1).step_by(2).filter(|n| n.contains('_')).collect();
        assert!(!named.is_empty(), "names no test: {line}");
        for name in named {
            assert!(tests.contains(name), "{name} is no test: {line}");
        }
    }
    assert!(invariants >= 10, "only {invariants} invariants found");
}

#[test]
fn no_test_is_ignored_or_sleeps() {
    for dir in ["crates", "src", "tests"] {
        for (file, text) in sources(dir) {
            if file == "tests/tidy.rs" {
                continue;
            }
            assert!(!text.contains("#[ignore"), "{file} ignores a test");
            assert!(!file.contains("tests/") || !text.contains("thread::sleep"), "{file} sleeps");
        }
    }
}
