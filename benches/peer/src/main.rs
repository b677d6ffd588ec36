//! ggml beside loadmaster, in one process. See README.md.

mod compare;
mod ffi;
mod file;
mod ggml;
mod rebuilt;
mod world;

use anyhow::Context;
use std::path::{Path, PathBuf};

const GOLDENS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/goldens/graphs");

fn main() -> anyhow::Result<()> {
    let mut args = std::env::args().skip(1);
    match args.next().as_deref() {
        Some("check") => check(&files(args.map(PathBuf::from).collect())?),
        other => anyhow::bail!("unknown command {other:?}"),
    }
}

/// The given graph files, those of given directories, or all goldens.
fn files(paths: Vec<PathBuf>) -> anyhow::Result<Vec<PathBuf>> {
    let paths = if paths.is_empty() { vec![PathBuf::from(GOLDENS)] } else { paths };
    let mut files = Vec::new();
    for path in paths {
        if path.is_dir() {
            for entry in std::fs::read_dir(&path)? {
                files.push(entry?.path());
            }
        } else {
            files.push(path);
        }
    }
    files.sort();
    Ok(files)
}

/// ggml must answer what the golden files say: this validates the harness.
fn check(files: &[PathBuf]) -> anyhow::Result<()> {
    let mut wrong = 0;
    for path in files {
        match check_one(path).with_context(|| path.display().to_string()) {
            Ok(None) => {}
            Ok(Some(difference)) => {
                wrong += 1;
                println!("{}: ggml or the file: {difference}", path.display());
            }
            Err(error) => {
                wrong += 1;
                println!("{error:#}");
            }
        }
    }
    println!("ggml agrees with {} of {} files", files.len() - wrong, files.len());
    anyhow::ensure!(wrong == 0, "the harness is not faithful");
    Ok(())
}

fn check_one(path: &Path) -> anyhow::Result<Option<String>> {
    let file = file::GraphFile::read(path)?;
    let expected = file.expected.as_ref().context("the file has no `expected`")?;
    let answer = ggml::Ggml::new(&file)?.answer(&file)?;
    Ok(compare::first_difference(&answer, expected))
}
