//! Compiled kernels on disk.
//!
//! Files stand in `kernels/` under [`CACHE_VARIABLE`], or else under `loadmaster` in the user's cache directory
//! (`$XDG_CACHE_HOME`, `~/.cache`), and are named after what they were compiled from: source, headers, options
//! (form and architecture), compiler. They are written under another name and renamed, so nobody sees half a file, and begin with a
//! checksum: what was damaged is compiled again. Nothing depends on the cache: where there is none, kernels are compiled
//! every time.

use super::nvrtc::{self, Header};
use super::toolkit::Way;
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
    /// What it is compiled to.
    pub(crate) way: Way,
}

/// What a source is compiled to: from the cache, or compiled and put there. Errors: the compiler's.
pub(crate) fn image(source: &Source<'_>) -> Result<Vec<u8>, String> {
    let options = [source.way.option(), "--std=c++17".to_owned()];
    let version = nvrtc::version();
    let place = directory().map(|dir| dir.join(file_name(source, &options, version.as_ref().ok().copied())));
    kept(place.as_deref(), || {
        version?;
        let file = format!("{}.cu", source.name);
        nvrtc::compile(&file, source.text, source.headers, &options, source.way.form)
    })
}

/// What stands in a file, or what `make` makes, which is put there. A file that cannot be written is only logged.
fn kept(place: Option<&Path>, make: impl FnOnce() -> Result<Vec<u8>, String>) -> Result<Vec<u8>, String> {
    if let Some(found) = place.and_then(read) {
        return Ok(found);
    }
    let image = make()?;
    if let Some(Err(error)) = place.map(|place| write(place, &image)) {
        tracing::warn!(%error, "compiled kernels could not be kept");
    }
    Ok(image)
}

fn directory() -> Option<PathBuf> {
    let of = |variable: &str| env::var_os(variable).filter(|v| !v.is_empty()).map(PathBuf::from);
    let user = || of("XDG_CACHE_HOME").or_else(|| of("HOME").map(|home| home.join(".cache")));
    of(CACHE_VARIABLE).or_else(|| user().map(|dir| dir.join("loadmaster"))).map(|dir| dir.join("kernels"))
}

fn hash(texts: &[&[u8]]) -> String {
    let mut hasher = StructuralHasher::new();
    for text in texts {
        hasher.word(text.len() as u64);
        for chunk in text.chunks(8) {
            let mut word = [0; 8];
            word[..chunk.len()].copy_from_slice(chunk);
            hasher.word(u64::from_le_bytes(word));
        }
    }
    hasher.finish().to_string()
}

fn file_name(source: &Source<'_>, options: &[String], version: Option<(i32, i32)>) -> String {
    let version = version.map_or("none".into(), |(major, minor)| format!("{major}.{minor}"));
    let mut texts = vec![source.text.as_bytes(), version.as_bytes()];
    texts.extend(source.headers.iter().flat_map(|h| [h.0.as_bytes(), h.1.as_bytes()]));
    texts.extend(options.iter().map(String::as_bytes));
    format!("{}-sm{}-{}.{}", source.name, source.way.arch, hash(&texts), source.way.ending())
}

/// What stands in a file, if it is whole.
fn read(place: &Path) -> Option<Vec<u8>> {
    let bytes = fs::read(place).ok()?;
    let end = bytes.iter().position(|byte| *byte == b'\n')?;
    let (first, image) = (bytes.get(..end)?, bytes.get(end + 1..)?);
    (first.strip_prefix(MARK.as_bytes())? == hash(&[image]).as_bytes()).then(|| image.to_owned())
}

fn write(place: &Path, image: &[u8]) -> std::io::Result<()> {
    if let Some(dir) = place.parent() {
        fs::create_dir_all(dir)?;
    }
    // Two GPUs of one process may compile the same source at once.
    static WRITES: AtomicU64 = AtomicU64::new(0);
    let number = WRITES.fetch_add(1, Ordering::Relaxed);
    let half = place.with_extension(format!("{}-{number}.new", process::id()));
    let first = format!("{MARK}{}\n", hash(&[image]));
    let written = fs::write(&half, [first.as_bytes(), image].concat()).and_then(|()| fs::rename(&half, place));
    if written.is_err() {
        // On a disk that is full it would stand there for ever. That it is not there is all that can go wrong.
        let _ = fs::remove_file(&half);
    }
    written
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "helpers of tests fail tests")]
mod tests {
    use super::*;
    use crate::cuda::toolkit::Form;

    #[test]
    fn a_damaged_file_of_the_cache_is_not_read() {
        let dir = env::temp_dir().join(format!("loadmaster-ptx-{}", process::id()));
        let place = dir.join("x.ptx");
        assert_eq!(read(&place), None);
        write(&place, b".version 8.0\n.target sm_80\n").unwrap();
        assert_eq!(read(&place).unwrap(), b".version 8.0\n.target sm_80\n");
        let whole = fs::read_to_string(&place).unwrap();
        for damaged in [&whole[..whole.len() - 1], &whole[1..], "", &whole.replace("8.0", "8.1")] {
            fs::write(&place, damaged).unwrap();
            assert_eq!(read(&place), None);
        }
        fs::remove_dir_all(&dir).unwrap();
    }

    fn fresh(name: &str) -> PathBuf {
        let dir = env::temp_dir().join(format!("loadmaster-{name}-{}", process::id()));
        fs::create_dir_all(&dir).unwrap();
        dir
    }

    #[test]
    fn what_cannot_be_kept_is_made_each_time_and_leaves_nothing_half_written() {
        let dir = fresh("unwritable");
        let (file, taken) = (dir.join("file"), dir.join("x.ptx"));
        fs::write(&file, "a file where a directory should be").unwrap();
        fs::create_dir(&taken).unwrap();
        let mut made = 0;
        for place in [Some(file.join("kernels/x.ptx")), Some(taken), None] {
            for _ in 0..2 {
                let image = kept(place.as_deref(), || {
                    made += 1;
                    Ok(b"image".to_vec())
                });
                assert_eq!(image.unwrap(), b"image");
            }
        }
        assert_eq!(made, 6);
        assert_eq!(kept(None, || Err("the compiler's words".into())).unwrap_err(), "the compiler's words");
        let left = fs::read_dir(&dir).unwrap().count();
        fs::remove_dir_all(&dir).unwrap();
        assert_eq!(left, 2, "something half written stands beside the file and the directory");
    }

    #[test]
    fn those_who_keep_the_same_image_at_once_all_get_it_whole_and_a_damaged_one_is_replaced() {
        let dir = fresh("at-once");
        let place = dir.join("x.cubin");
        let image = vec![b'\n'; 100_000];
        for damaged in [&b"// loadmaster 0\nhalf"[..], b"", b"\xff\xfe"] {
            fs::write(&place, damaged).unwrap();
            std::thread::scope(|threads| {
                for _ in 0..8 {
                    threads.spawn(|| assert!(kept(Some(&place), || Ok(image.clone())).unwrap() == image));
                }
            });
            assert!(read(&place).unwrap() == image, "it was not kept");
        }
        let left = fs::read_dir(&dir).unwrap().count();
        fs::remove_dir_all(&dir).unwrap();
        assert_eq!(left, 1);
    }

    #[test]
    fn whatever_a_compilation_depends_on_changes_the_name_of_its_file() {
        let way = Way { form: Form::Ptx, arch: 80 };
        let source = Source { name: "a", text: "x", headers: &[("h", "y")], way };
        let options = ["o".to_owned()];
        let name = file_name(&source, &options, Some((12, 9)));
        let others = [
            file_name(&Source { text: "z", ..source }, &options, Some((12, 9))),
            file_name(&Source { headers: &[("h", "z")], ..source }, &options, Some((12, 9))),
            file_name(&Source { way: Way { arch: 90, ..way }, ..source }, &options, Some((12, 9))),
            file_name(&Source { way: Way { form: Form::MachineCode, ..way }, ..source }, &options, Some((12, 9))),
            file_name(&source, &["p".to_owned()], Some((12, 9))),
            file_name(&source, &options, Some((12, 8))),
        ];
        assert!(others.iter().all(|other| *other != name));
        assert_eq!(name, file_name(&source, &options, Some((12, 9))));
    }

    #[test]
    fn every_part_of_the_sources_compiles_where_the_compiler_is_and_a_bad_one_gets_its_words() {
        use crate::cuda::launch::sources::{HEADERS, SOURCES, part, text};
        if let Err(why) = nvrtc::version() {
            return println!("skipped: {why}");
        }
        let way = Way { form: Form::Ptx, arch: 80 };
        let options = [way.option(), "--std=c++17".to_owned()];
        for (name, whole) in SOURCES {
            let text = text(part(name, "lm_any_q4_K")).unwrap();
            assert!(text.len() <= whole.len());
            let ptx = nvrtc::compile(name, &text, HEADERS, &options, Form::Ptx).unwrap();
            let ptx = String::from_utf8(ptx).unwrap();
            assert!(ptx.contains(".entry lm_") && ptx.contains(".target sm_80"), "{name}");
            assert!(!ptx.contains("q5_K"), "{name}");
        }
        let why = nvrtc::compile("bad", "__global__ void f() { nonsense; }", &[], &[], Form::Ptx).unwrap_err();
        assert!(why.contains("nonsense"), "{why}");
    }
}
