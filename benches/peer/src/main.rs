//! ggml beside loadmaster, in one process. See README.md.

mod bench;
mod compare;
mod ffi;
mod file;
mod fuzz;
mod ggml;
mod ours;
mod random;
mod rebuilt;
mod unbacked;
mod world;

use anyhow::Context;
use std::path::{Path, PathBuf};

const GOLDENS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/goldens/graphs");

fn main() -> anyhow::Result<()> {
    let mut args = std::env::args().skip(1);
    match args.next().as_deref() {
        None => bench(std::iter::empty()),
        Some("bench") => bench(args),
        Some("check") => check(&files(args.map(PathBuf::from).collect())?),
        Some("fuzz") => fuzz(args),
        Some("replay") => fuzz::replay(&args.map(PathBuf::from).collect::<Vec<_>>()),
        Some("show") => fuzz::show(number(args.next())?, reach(args.next())),
        Some("answers") => answers(&PathBuf::from(args.next().context("a file is missing")?)),
        Some("export") => {
            let (count, folder) = (number(args.next())? as usize, args.next().context("a folder is missing")?);
            fuzz::export(0..100_000, count, Path::new(&folder))
        }
        // For child processes.
        Some("worker") => fuzz::worker(number(args.next())?..number(args.next())?, reach(args.next())),
        Some("judge") => fuzz::judge_stdin(),
        other => anyhow::bail!("unknown command {other:?}; see README.md"),
    }
}

/// `[--rounds N] [--cold] [FILES]`
fn bench(mut args: impl Iterator<Item = String>) -> anyhow::Result<()> {
    let (mut rounds, mut caches, mut files) = (201, bench::Caches::Warm, Vec::new());
    while let Some(arg) = args.next() {
        match arg.as_str() {
            "--rounds" => rounds = number(args.next())? as usize,
            "--cold" => caches = bench::Caches::Cold,
            file => files.push(PathBuf::from(file)),
        }
    }
    let files = if files.is_empty() { goldens() } else { files };
    bench::run(&files, rounds, caches)
}

/// The graphs that are timed by default.
fn goldens() -> Vec<PathBuf> {
    bench::GRAPHS.iter().map(|name| Path::new(GOLDENS).join(name)).collect()
}

fn number(text: Option<String>) -> anyhow::Result<u64> {
    Ok(text.context("a number is missing")?.parse()?)
}

fn reach(text: Option<String>) -> fuzz::Reach {
    if text.as_deref() == Some("everything") { fuzz::Reach::Everything } else { fuzz::Reach::Sound }
}

/// `--seeds N [--from S] [--keep-going] [--everything] [--strict]`
fn fuzz(mut args: impl Iterator<Item = String>) -> anyhow::Result<()> {
    let (mut seeds, mut from) = (1000, 0);
    let mut options = fuzz::Options::default();
    while let Some(arg) = args.next() {
        match arg.as_str() {
            "--seeds" => seeds = number(args.next())?,
            "--from" => from = number(args.next())?,
            "--keep-going" => options.keep_going = true,
            "--strict" => options.strict = true,
            "--everything" => options.reach = fuzz::Reach::Everything,
            other => anyhow::bail!("unknown option {other}; see README.md"),
        }
    }
    fuzz::run(from..from + seeds, options)
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

/// ggml must answer what the golden files say: this validates the harness. So must loadmaster.
fn check(files: &[PathBuf]) -> anyhow::Result<()> {
    let mut wrong = [0; 2];
    for path in files {
        let file = file::GraphFile::read(path).with_context(|| path.display().to_string())?;
        let answers = [check_ggml(&file), check_ours(&file)];
        for ((who, wrong), answer) in ["ggml", "loadmaster"].iter().zip(&mut wrong).zip(answers) {
            let what = match answer {
                Ok(None) => continue,
                Ok(Some(difference)) => format!("{who}, or the file: {difference}"),
                Err(error) => format!("{who}: {error:#}"),
            };
            *wrong += 1;
            println!("{}: {what}", path.display());
        }
    }
    println!(
        "ggml agrees with {} of {} files, loadmaster with {}",
        files.len() - wrong[0],
        files.len(),
        files.len() - wrong[1]
    );
    anyhow::ensure!(wrong == [0, 0], "there are differences");
    Ok(())
}

fn check_ggml(file: &file::GraphFile) -> anyhow::Result<Option<String>> {
    let expected = file.expected.as_ref().context("the file has no `expected`")?;
    Ok(compare::first_difference(&ggml::Ggml::new(file)?.answer(file)?, expected))
}

fn check_ours(file: &file::GraphFile) -> anyhow::Result<Option<String>> {
    let expected = file.expected.as_ref().context("the file has no `expected`")?;
    let ours = ours::Ours::new(file)?;
    let faults = ours.verify()?;
    anyhow::ensure!(faults.is_empty(), "{}", faults.join("; "));
    Ok(compare::first_difference(&ours.answer()?, expected))
}

/// Both answers to a file, as JSON.
fn answers(path: &Path) -> anyhow::Result<()> {
    let file = file::GraphFile::read(path)?;
    println!("ggml       {}", serde_json::to_string(&ggml::Ggml::new(&file)?.answer(&file)?)?);
    println!("loadmaster {}", serde_json::to_string(&ours::Ours::new(&file)?.answer()?)?);
    Ok(())
}
