//! Compiled kernels on disk.
//!
//! Files stand in `ptx/` under [`CACHE_VARIABLE`], or else under `loadmaster` in the user's cache directory
//! (`$XDG_CACHE_HOME`, `~/.cache`), and are named after what they were compiled from: source, headers, options,
//! architecture, compiler. They are written under another name and renamed, so nobody sees half a file, and begin with a
//! checksum: what was damaged is compiled again. Nothing depends on the cache: where there is none, kernels are compiled
//! every time.

use super::nvrtc::{self, Header};
use loadmaster_graph::StructuralHasher;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::{env, fs, process};

/// Environment variable with the directory of the cache.
pub const CACHE_VARIABLE: &str = "LOADMASTER_CACHE_DIR";

const MARK: &str = "// loadmaster ";

/// A source with all that its compilation depends on.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Source<'a> {
    /// Its name.
    pub(crate) name: &'a str,
    /// Its text.
    pub(crate) text: &'a str,
    /// What it may include.
    pub(crate) headers: &'a [Header],
    /// Compute capability times ten.
    pub(crate) arch: u32,
}

/// The PTX of a source: from the cache, or compiled and put there. Errors: the compiler's.
pub(crate) fn ptx(source: &Source<'_>) -> Result<String, String> {
    let options = [format!("--gpu-architecture=compute_{}", source.arch), "--std=c++17".to_owned()];
    let version = nvrtc::version();
    let place = directory().map(|dir| dir.join(file_name(source, &options, version.as_ref().ok().copied())));
    if let Some(found) = place.as_deref().and_then(read) {
        return Ok(found);
    }
    version?;
    let file = format!("{}.cu", source.name);
    let ptx = nvrtc::compile(&file, source.text, source.headers, &options)?;
    if let Some(Err(error)) = place.as_deref().map(|place| write(place, &ptx)) {
        tracing::warn!(%error, "compiled kernels could not be kept");
    }
    Ok(ptx)
}

fn directory() -> Option<PathBuf> {
    let of = |variable: &str| env::var_os(variable).filter(|v| !v.is_empty()).map(PathBuf::from);
    let user = || of("XDG_CACHE_HOME").or_else(|| of("HOME").map(|home| home.join(".cache")));
    of(CACHE_VARIABLE).or_else(|| user().map(|dir| dir.join("loadmaster"))).map(|dir| dir.join("ptx"))
}

fn hash(texts: &[&str]) -> String {
    let mut hasher = StructuralHasher::new();
    for text in texts {
        hasher.word(text.len() as u64);
        for chunk in text.as_bytes().chunks(8) {
            let mut word = [0; 8];
            word[..chunk.len()].copy_from_slice(chunk);
            hasher.word(u64::from_le_bytes(word));
        }
    }
    hasher.finish().to_string()
}

fn file_name(source: &Source<'_>, options: &[String], version: Option<(i32, i32)>) -> String {
    let version = version.map_or("none".into(), |(major, minor)| format!("{major}.{minor}"));
    let mut texts = vec![source.text, &version];
    texts.extend(source.headers.iter().flat_map(|h| [h.0, h.1]));
    texts.extend(options.iter().map(String::as_str));
    format!("{}-sm{}-{}.ptx", source.name, source.arch, hash(&texts))
}

/// What stands in a file, if it is whole.
fn read(place: &Path) -> Option<String> {
    let text = fs::read_to_string(place).ok()?;
    let (first, ptx) = text.split_once('\n')?;
    (first.strip_prefix(MARK)? == hash(&[ptx])).then(|| ptx.to_owned())
}

fn write(place: &Path, ptx: &str) -> std::io::Result<()> {
    if let Some(dir) = place.parent() {
        fs::create_dir_all(dir)?;
    }
    // Two GPUs of one process may compile the same source at once.
    static WRITES: AtomicU64 = AtomicU64::new(0);
    let number = WRITES.fetch_add(1, Ordering::Relaxed);
    let half = place.with_extension(format!("{}-{number}.new", process::id()));
    fs::write(&half, format!("{MARK}{}\n{ptx}", hash(&[ptx])))?;
    fs::rename(&half, place)
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "helpers of tests fail tests")]
mod tests {
    use super::*;

    #[test]
    fn a_damaged_file_of_the_cache_is_not_read() {
        let dir = env::temp_dir().join(format!("loadmaster-ptx-{}", process::id()));
        let place = dir.join("x.ptx");
        assert_eq!(read(&place), None);
        write(&place, ".version 8.0\n.target sm_80\n").unwrap();
        assert_eq!(read(&place).unwrap(), ".version 8.0\n.target sm_80\n");
        let whole = fs::read_to_string(&place).unwrap();
        for damaged in [&whole[..whole.len() - 1], &whole[1..], "", &whole.replace("8.0", "8.1")] {
            fs::write(&place, damaged).unwrap();
            assert_eq!(read(&place), None);
        }
        fs::remove_dir_all(&dir).unwrap();
    }

    #[test]
    fn whatever_a_compilation_depends_on_changes_the_name_of_its_file() {
        let source = Source { name: "a", text: "x", headers: &[("h", "y")], arch: 80 };
        let options = ["o".to_owned()];
        let name = file_name(&source, &options, Some((12, 9)));
        let others = [
            file_name(&Source { text: "z", ..source }, &options, Some((12, 9))),
            file_name(&Source { headers: &[("h", "z")], ..source }, &options, Some((12, 9))),
            file_name(&Source { arch: 90, ..source }, &options, Some((12, 9))),
            file_name(&source, &["p".to_owned()], Some((12, 9))),
            file_name(&source, &options, Some((12, 8))),
        ];
        assert!(others.iter().all(|other| *other != name));
        assert_eq!(name, file_name(&source, &options, Some((12, 9))));
    }

    #[test]
    fn every_source_compiles_where_the_compiler_is_and_a_bad_one_gets_its_words() {
        if let Err(why) = nvrtc::version() {
            return println!("skipped: {why}");
        }
        use crate::cuda::launch::sources::{HEADERS, SOURCES};
        for (name, text) in SOURCES {
            let options = ["--gpu-architecture=compute_80".to_owned(), "--std=c++17".to_owned()];
            let ptx = nvrtc::compile(name, text, HEADERS, &options).unwrap();
            assert!(ptx.contains(".entry lm_") && ptx.contains(".target sm_80"), "{name}");
        }
        let why = nvrtc::compile("bad", "__global__ void f() { nonsense; }", &[], &[]).unwrap_err();
        assert!(why.contains("nonsense"), "{why}");
    }
}
