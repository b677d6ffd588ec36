//! Lines on standard error.

use assert_cmd::Command;
use serde_json::Value;

fn run(options: &[&str]) -> String {
    let mut command = Command::cargo_bin("loadmaster").unwrap();
    command.args(["run", "-n", "2", "--device", "sim:64MiB", "--device", "cpu"]).args(options);
    let output = command.assert().success().get_output().clone();
    String::from_utf8(output.stderr).unwrap()
}

#[test]
fn json_lines_are_objects_with_level_target_and_fields() {
    let said = run(&["--log", "loadmaster=info", "--log-format", "json"]);
    let lines: Vec<Value> = said.lines().map(|l| serde_json::from_str(l).unwrap()).collect();
    let grown = lines.iter().find(|l| l["message"] == "grow").unwrap_or_else(|| panic!("{said}"));
    assert_eq!((&grown["level"], &grown["target"]), (&"INFO".into(), &"loadmaster::plan".into()));
    assert!(grown["to"].as_u64().unwrap() > grown["from"].as_u64().unwrap(), "{grown}");
}

#[test]
fn readable_lines_are_quiet_unless_asked() {
    assert_eq!(run(&[]), "");
    assert!(run(&["--log", "info"]).contains("grow"));
}

#[test]
fn a_filter_that_cannot_be_read_is_an_error_that_quotes_it() {
    let mut command = Command::cargo_bin("loadmaster").unwrap();
    let refused = command.args(["run", "--log", "loadmaster=loud"]).assert().code(2);
    let said = String::from_utf8(refused.get_output().stderr.clone()).unwrap();
    assert!(said.contains("--log loadmaster=loud"), "{said}");
}
