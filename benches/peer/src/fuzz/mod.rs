//! Differential fuzzing: random cases through ggml's planner and through loadmaster's.
//!
//! ggml aborts the process where an assertion fails, so cases run in child processes: the parent notes the seed that a
//! child died of and starts another one behind it.

mod describe;
mod generate;
mod minimise;

pub use generate::Reach;

use self::describe::describe;
use crate::compare::first_difference;
use crate::file::{Answer, GraphFile};
use crate::ggml::Ggml;
use crate::ours::Ours;
use anyhow::{Context, bail};
use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Where differing cases go.
const FOUND: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/target/fuzz");

/// What came out of a case.
#[derive(Clone, Debug, PartialEq)]
enum Verdict {
    /// Both plan the same.
    Same,
    /// They plan differently.
    Differs(String),
    /// Both plan the same, which loadmaster's checkers find unsound.
    Unsound(String),
    /// Only loadmaster refuses, or panics.
    OursRefuses(String),
    /// ggml aborts; loadmaster refuses too (the error), or plans.
    GgmlAborts { why: String, ours: Result<(), String> },
}

impl Verdict {
    fn is_difference(&self, options: Options) -> bool {
        matches!(self, Self::Differs(_) | Self::OursRefuses(_))
            || (options.strict && matches!(self, Self::Unsound(_)))
            || matches!(self, Self::GgmlAborts { ours: Err(e), .. } if e.starts_with("panic"))
    }

    /// Differences of plans carry much that changes with the case; what a checker says is one sentence.
    fn kind_len(&self) -> usize {
        if matches!(self, Self::Differs(_)) { 14 } else { 80 }
    }

    /// What should stay while a case is made smaller.
    fn kind(&self) -> String {
        let text = match self {
            Self::Same => "same",
            Self::Differs(text) | Self::OursRefuses(text) | Self::Unsound(text) => text,
            Self::GgmlAborts { .. } => "ggml aborts",
        };
        text.chars().filter(|c| !c.is_ascii_digit()).take(self.kind_len()).collect()
    }
}

/// How to fuzz.
#[derive(Clone, Copy, Debug, Default)]
pub struct Options {
    /// What cases may contain.
    pub reach: Reach,
    /// Go on behind a difference.
    pub keep_going: bool,
    /// Splits by the reference's rules that are not sound count as a difference.
    pub strict: bool,
}

/// Runs the seeds and prints every difference, made small. Errors: differences were found.
pub fn run(seeds: Range<u64>, options: Options) -> anyhow::Result<()> {
    let mut tally = Tally::default();
    let mut next = seeds.start;
    while next < seeds.end {
        next = run_child(next..seeds.end, options, &mut tally)?;
        if tally.differences > 0 && !options.keep_going {
            break;
        }
    }
    tally.print();
    anyhow::ensure!(tally.differences == 0, "{} differences", tally.differences);
    Ok(())
}

#[derive(Default)]
struct Tally {
    same: u64,
    differences: u64,
    both_refuse: u64,
    only_ggml: BTreeMap<String, (u64, u64)>,
    kinds: BTreeMap<String, u64>,
    faults: BTreeMap<String, (u64, u64)>,
    nodes: u64,
}

impl Tally {
    fn print(&self) {
        println!("{} cases planned alike ({} nodes), {} differences", self.same, self.nodes, self.differences);
        println!("{} cases that ggml aborts on and loadmaster refuses with an error", self.both_refuse);
        for (why, (count, seed)) in &self.only_ggml {
            println!("{count} cases that ggml aborts on and loadmaster plans, such as seed {seed}: {why}");
        }
        for (fault, (count, seed)) in &self.faults {
            println!("{count} cases whose plan by the reference's rules is unsound, such as seed {seed}: {fault}");
        }
        for (kind, count) in &self.kinds {
            println!("{count} × {kind}");
        }
    }

    fn fault(&mut self, seed: u64, text: &str) {
        let kind = text.replace(|c: char| c.is_ascii_digit(), "");
        self.faults.entry(kind).or_insert((0, seed)).0 += 1;
    }

    fn add(&mut self, seed: u64, verdict: &Verdict, options: Options) -> anyhow::Result<()> {
        if let Verdict::GgmlAborts { why, ours } = verdict {
            match ours {
                Err(_) => self.both_refuse += 1,
                Ok(()) => self.only_ggml.entry(why.clone()).or_insert((0, seed)).0 += 1,
            }
        }
        if !verdict.is_difference(options) {
            return Ok(());
        }
        self.differences += 1;
        let count = self.kinds.entry(verdict.kind()).or_default();
        *count += 1;
        if options.keep_going && *count > 3 {
            return Ok(());
        }
        report(seed, verdict, options)
    }
}

/// Runs seeds in a child until it ends or dies. Returns the first seed that is left.
fn run_child(seeds: Range<u64>, options: Options, tally: &mut Tally) -> anyhow::Result<u64> {
    let far = if options.reach == Reach::Everything { "everything" } else { "sound" };
    let mut child = child(&["worker", &seeds.start.to_string(), &seeds.end.to_string(), far]).spawn()?;
    let lines = BufReader::new(child.stdout.take().context("no pipe")?).lines();
    let mut current = None;
    let mut ours = Ok(());
    let mut found = Vec::new();
    for line in lines {
        let line = line?;
        let (word, text) = line.split_once(' ').unwrap_or((&line, ""));
        match word {
            "seed" => current = Some(text.parse::<u64>()?),
            "ours" => ours = Err(unescape(text)),
            "fault" => {
                tally.fault(current.unwrap_or_default(), &unescape(text));
                if options.strict && text.starts_with("splits") {
                    found.push((current, Verdict::Unsound(unescape(text))));
                }
            }
            "same" => {
                tally.same += 1;
                tally.nodes += text.parse::<u64>()?;
            }
            "differs" => found.push((current, Verdict::Differs(unescape(text)))),
            "refuses" => found.push((current, Verdict::OursRefuses(unescape(text)))),
            "aborts" => found.push((current, Verdict::GgmlAborts { why: unescape(text), ours: ours.clone() })),
            _ => bail!("the child said {line}"),
        }
        if matches!(word, "same" | "differs" | "refuses" | "aborts") {
            ours = Ok(());
            if !found.is_empty() && !options.keep_going {
                child.kill()?;
                break;
            }
        }
    }
    let why = abort_reason(child.stderr.take());
    let status = child.wait()?;
    for (seed, verdict) in &found {
        tally.add(seed.context("a verdict without a seed")?, verdict, options)?;
    }
    let Some(last) = current else { bail!("the child did nothing: {why}") };
    if status.success() {
        return Ok(seeds.end);
    }
    if found.is_empty() || options.keep_going {
        tally.add(last, &Verdict::GgmlAborts { why, ours }, options)?;
    }
    Ok(last + 1)
}

fn child(args: &[&str]) -> Command {
    let mut command = Command::new(std::env::current_exe().expect("the program knows its own path"));
    command.args(args).env("GGML_NO_BACKTRACE", "1").stdin(Stdio::piped()).stdout(Stdio::piped());
    command.stderr(Stdio::piped());
    command
}

/// The line of ggml's assertion.
fn abort_reason(stderr: Option<impl Read>) -> String {
    let mut text = String::new();
    if let Some(mut pipe) = stderr {
        // A child that died in the middle of a character leaves what it wrote before.
        let mut bytes = Vec::new();
        let _ = pipe.read_to_end(&mut bytes);
        text = String::from_utf8_lossy(&bytes).into_owned();
    }
    let line = text.lines().find(|l| l.contains("GGML_ASSERT") || l.contains(".c:") || l.contains(".cpp:"));
    let line = line.or(text.lines().last()).unwrap_or("no message");
    let line = line.rsplit('/').next().unwrap_or(line).split(" (").next().unwrap_or(line);
    // One kind of assertion, whatever tensor it names.
    line.replace(|c: char| c.is_ascii_digit(), "#")
}

/// The child: one line before each seed and one after.
pub fn worker(seeds: Range<u64>, reach: Reach) -> anyhow::Result<()> {
    std::panic::set_hook(Box::new(|_| {}));
    let mut out = std::io::stdout().lock();
    for seed in seeds {
        writeln!(out, "seed {seed}")?;
        out.flush()?;
        judge_to(&generate::case(seed, reach), &mut out)?;
    }
    Ok(())
}

/// The child that judges one case, given on its standard input.
pub fn judge_stdin() -> anyhow::Result<()> {
    std::panic::set_hook(Box::new(|_| {}));
    let file: GraphFile = serde_json::from_reader(std::io::stdin().lock())?;
    judge_to(&file, &mut std::io::stdout().lock())
}

fn judge_to(file: &GraphFile, out: &mut impl Write) -> anyhow::Result<()> {
    let ours = ours(file);
    match &ours {
        Err(error) => writeln!(out, "ours {}", escape(error))?,
        Ok((_, faults)) => faults.iter().try_for_each(|f| writeln!(out, "fault {}", escape(f)))?,
    }
    out.flush()?;
    let ggml = match ggml(file, ours.as_ref().ok().map(|(answer, _)| answer)) {
        Ok(answer) => answer,
        Err(error) => {
            writeln!(out, "aborts {}", escape(&format!("harness: {error:#}")))?;
            return Ok(out.flush()?);
        }
    };
    match ours {
        Err(error) => writeln!(out, "refuses {}", escape(&error))?,
        Ok((ours, _)) => match first_difference(&ggml, &ours) {
            Some(text) => writeln!(out, "differs {}", escape(&text))?,
            None => writeln!(out, "same {}", file.nodes.len())?,
        },
    }
    Ok(out.flush()?)
}

/// ggml's answer, with groups if loadmaster has an answer with such.
fn ggml(file: &GraphFile, ours: Option<&Answer>) -> anyhow::Result<Answer> {
    let mut ggml = Ggml::new(file)?;
    let mut answer = ggml.answer(file)?;
    if ours.is_some_and(|a| a.groups.is_some()) {
        answer.groups = Some(ggml.groups(file)?);
    }
    Ok(answer)
}

/// loadmaster's answer; a panic is an error that says so.
fn ours(file: &GraphFile) -> Result<(Answer, Vec<String>), String> {
    let run = || {
        let ours = Ours::new(file)?;
        let mut answer = ours.answer()?;
        answer.groups = ours.groups()?.into_iter().collect();
        Ok((answer, ours.verify()?))
    };
    match std::panic::catch_unwind(std::panic::AssertUnwindSafe(run)) {
        Ok(result) => result.map_err(|e: anyhow::Error| format!("{e:#}")),
        Err(payload) => {
            let text = payload.downcast_ref::<String>().map(String::as_str);
            Err(format!("panic: {}", text.or(payload.downcast_ref::<&str>().copied()).unwrap_or("?")))
        }
    }
}

/// Judges a case in a child of its own.
fn judge(file: &GraphFile) -> anyhow::Result<Verdict> {
    let mut child = child(&["judge"]).spawn()?;
    let mut stdin = child.stdin.take().context("no pipe")?;
    stdin.write_all(file.to_json().as_bytes())?;
    drop(stdin);
    let output = child.wait_with_output()?;
    let text = String::from_utf8_lossy(&output.stdout);
    let mut ours = Ok(());
    let mut fault = None;
    for line in text.lines() {
        let (word, text) = line.split_once(' ').unwrap_or((line, ""));
        match word {
            "ours" => ours = Err(unescape(text)),
            "fault" => fault = fault.or(Some(unescape(text))),
            "same" => return Ok(fault.map_or(Verdict::Same, Verdict::Unsound)),
            "differs" => return Ok(Verdict::Differs(unescape(text))),
            "refuses" => return Ok(Verdict::OursRefuses(unescape(text))),
            "aborts" => return Ok(Verdict::GgmlAborts { why: unescape(text), ours }),
            _ => bail!("the child said {line}"),
        }
    }
    Ok(Verdict::GgmlAborts { why: abort_reason(Some(&output.stderr[..])), ours })
}

/// Prints a difference, made small, and keeps the case with ggml's answer as a graph file.
fn report(seed: u64, verdict: &Verdict, options: Options) -> anyhow::Result<()> {
    println!("seed {seed}: {verdict:?}");
    let kind = verdict.kind();
    let (small, verdict) = minimise::minimise(generate::case(seed, options.reach), |case| {
        let verdict = judge(case)?;
        Ok((verdict.is_difference(options) && verdict.kind() == kind).then_some(verdict))
    })?;
    let path = PathBuf::from(FOUND).join(format!("seed{seed}.json"));
    std::fs::create_dir_all(FOUND)?;
    keep(&path, small.clone())?;
    println!("{}  as small as it gets, in {}: {verdict:?}", describe(&small), path.display());
    Ok(())
}

/// Writes a case with ggml's answer, unless ggml aborts on it.
fn keep(path: &Path, mut file: GraphFile) -> anyhow::Result<()> {
    if !matches!(judge(&file)?, Verdict::GgmlAborts { .. }) {
        file.expected = Some(Ggml::new(&file)?.answer(&file)?);
    }
    Ok(std::fs::write(path, file.to_json())?)
}

/// Writes cases with ggml's answers as golden files: small ones of the kinds that FORMAT.md can say and ggml can plan.
pub fn export(seeds: Range<u64>, count: usize, folder: &Path) -> anyhow::Result<()> {
    std::fs::create_dir_all(folder)?;
    let mut written = 0;
    for seed in seeds {
        let mut file = generate::case(seed, Reach::Sound);
        let sayable = file.keep_until.is_empty() && file.devices.iter().all(|d| d.unsupported.is_empty());
        if !sayable || !(8..=60).contains(&file.nodes.len()) {
            continue;
        }
        if matches!(judge(&file)?, Verdict::GgmlAborts { .. } | Verdict::Unsound(_)) {
            continue;
        }
        file.name = format!("random{written:03}");
        file.expected = Some(Ggml::new(&file)?.answer(&file)?);
        let path = folder.join(format!("{}.json.gz", file.name));
        let mut gzip = flate2::GzBuilder::new().write(std::fs::File::create(path)?, flate2::Compression::best());
        gzip.write_all(file.to_json().as_bytes())?;
        gzip.finish()?;
        written += 1;
        if written == count {
            return Ok(());
        }
    }
    bail!("only {written} of these seeds will do")
}

/// Judges given files and prints the verdicts.
pub fn replay(paths: &[PathBuf]) -> anyhow::Result<()> {
    let mut differences = 0;
    for path in paths {
        let file = GraphFile::read(path)?;
        let verdict = judge(&file)?;
        differences += u64::from(verdict.is_difference(Options::default()));
        println!("{}{}: {verdict:?}", describe(&file), path.display());
    }
    anyhow::ensure!(differences == 0, "{differences} differences");
    Ok(())
}

/// Replays the case of a seed.
pub fn show(seed: u64, reach: Reach) -> anyhow::Result<()> {
    let file = generate::case(seed, reach);
    println!("{}{:?}", describe(&file), judge(&file)?);
    Ok(())
}

/// One line of any text.
fn escape(text: &str) -> String {
    text.replace('\\', "\\\\").replace('\n', "\\n")
}

fn unescape(text: &str) -> String {
    text.replace("\\n", "\n").replace("\\\\", "\\")
}
