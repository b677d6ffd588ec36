//! `loadmaster pack` as its users run it.

#![allow(clippy::unwrap_used, clippy::panic)]

use assert_cmd::Command;
use std::fs;
use std::path::{Path, PathBuf};

fn pack(args: &[&str]) -> (i32, String, String) {
    let output = Command::cargo_bin("loadmaster").unwrap().arg("pack").args(args).output().unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    (output.status.code().unwrap(), text(output.stdout), text(output.stderr))
}

fn instances() -> Vec<PathBuf> {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/goldens/planner");
    let mut files: Vec<PathBuf> = fs::read_dir(dir).unwrap().map(|e| e.unwrap().path()).collect();
    files.sort();
    files
}

#[test]
fn all_eleven_hard_instances_meet_their_capacity_and_the_written_offsets_stand() {
    let out = tempfile::tempdir().unwrap();
    let files = instances();
    assert_eq!(files.len(), 11);
    for file in files {
        let written = out.path().join("out.csv");
        let (status, stdout, stderr) =
            pack(&[file.to_str().unwrap(), "--capacity", "1048576", "-o", written.to_str().unwrap()]);
        assert_eq!((status, stderr.as_str()), (0, ""), "{}: {stdout}", file.display());
        // Everything is fixed now: offsets that meet would be refused.
        let (status, stdout, stderr) = pack(&[written.to_str().unwrap(), "--capacity", "1048576"]);
        assert_eq!((status, stderr.as_str()), (0, ""), "{}: {stdout}", file.display());
    }
}

#[test]
fn a_capacity_below_the_bound_is_a_proved_no() {
    let (status, stdout, _) = pack(&[instances()[0].to_str().unwrap(), "--capacity", "1048575"]);
    assert_eq!(status, 1);
    assert!(stdout.contains("cannot be met, which is proved"), "{stdout}");
}

#[test]
fn bad_files_are_refused_with_their_place() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("bad.csv");
    for (text, place) in [("id,lower,upper,size\n0,5,3,8\n", "line 2"), ("id,lower,upper\n", "line 1"), ("", "empty")] {
        fs::write(&path, text).unwrap();
        let (status, _, stderr) = pack(&[path.to_str().unwrap()]);
        assert_eq!(status, 2, "{text:?}");
        assert!(stderr.contains("bad.csv") && stderr.contains(place), "{stderr}");
    }
    assert_eq!(pack(&["/nowhere.csv"]).0, 2);
    assert_eq!(pack(&[instances()[0].to_str().unwrap(), "--time-limit", "soon"]).0, 2);
}
