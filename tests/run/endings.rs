//! How a run ends that somebody cuts off.

use std::io::{BufRead, BufReader, Read};
use std::process::{Child, Command, ExitStatus, Stdio};

fn start(args: &[&str]) -> Child {
    let program = assert_cmd::cargo::cargo_bin("loadmaster");
    let mut command = Command::new(program);
    command.arg("run").args(args).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command.spawn().expect("it starts")
}

fn end(mut child: Child) -> (ExitStatus, String) {
    let mut said = String::new();
    child.stderr.take().expect("a pipe").read_to_string(&mut said).expect("text");
    (child.wait().expect("it ends"), said)
}

/// A text that takes long: it is cut off before it ends.
const LONG: [&str; 6] = ["-n", "1000000", "--ctx", "16384", "--ubatch", "32"];

#[test]
fn a_reader_that_closes_the_pipe_ends_it_quietly() {
    let mut child = start(&LONG);
    let mut line = String::new();
    BufReader::new(child.stdout.take().expect("a pipe")).read_line(&mut line).expect("text");
    assert!(line.contains("alice"), "{line}");
    let (status, said) = end(child);
    assert_eq!((status.code(), said.as_str()), (Some(0), ""));
}

#[test]
fn ctrl_c_ends_the_text_with_its_summary_and_status_130() {
    let mut child = start(&LONG);
    let mut out = BufReader::new(child.stdout.take().expect("a pipe"));
    let mut text = Vec::new();
    while !String::from_utf8_lossy(&text).contains(" sitting") {
        assert!(out.read_until(b' ', &mut text).expect("text") > 0, "it ended: {}", String::from_utf8_lossy(&text));
    }
    let sent = Command::new("kill").args(["-INT", &child.id().to_string()]).status().expect("a signal is sent");
    assert!(sent.success());
    out.read_to_end(&mut text).expect("text");
    let (status, said) = end(child);
    assert_eq!((status.code(), said.as_str()), (Some(130), ""));
    let text = String::from_utf8_lossy(&text);
    assert!(text.contains("(interrupted)") && text.contains("tokens/s"), "{}", &text[text.len().saturating_sub(600)..]);
}

#[test]
fn ctrl_c_ends_a_conversation_that_waits_for_a_line() {
    let smollm2 = "SmolLM2-135M-Instruct.Q4_1.gguf";
    if super::support::fetched("smollm2", smollm2).is_none() {
        return;
    }
    let path = super::support::root().join("models").join(smollm2).display().to_string();
    let mut child = start(&[&path, "--chat", "--ctx", "128"]);
    let mut line = String::new();
    BufReader::new(child.stdout.as_mut().expect("a pipe")).read_line(&mut line).expect("text");
    let sent = Command::new("kill").args(["-INT", &child.id().to_string()]).status().expect("a signal is sent");
    assert!(sent.success());
    let (status, said) = end(child);
    assert_eq!((status.code(), said.as_str()), (Some(130), ""));
}
