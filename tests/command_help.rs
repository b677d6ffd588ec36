//! Help, manual pages, completions; width and colour of what is printed.
#![allow(clippy::unwrap_used, clippy::panic)]

use assert_cmd::Command;
use clap::CommandFactory;
use loadmaster::commands::Cli;

fn loadmaster(arguments: &[&str]) -> String {
    let output = Command::cargo_bin("loadmaster").unwrap().args(arguments).output().unwrap();
    String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr)
}

/// Every subcommand with its long options.
fn options() -> Vec<(String, Vec<String>)> {
    let command = Cli::command();
    let of = |c: &clap::Command| c.get_arguments().filter_map(|a| a.get_long().map(str::to_owned)).collect();
    command.get_subcommands().map(|c| (c.get_name().to_owned(), of(c))).collect()
}

#[test]
fn manual_pages_exist_for_every_subcommand_and_mention_every_option() {
    let folder = tempfile::tempdir().unwrap();
    let place = folder.path().join("man1");
    assert_eq!(loadmaster(&["man", "-o", place.to_str().unwrap()]), "");
    for (name, options) in options() {
        let page = std::fs::read_to_string(place.join(format!("loadmaster-{name}.1"))).unwrap();
        for option in options {
            let escaped = option.replace('-', "\\-");
            assert!(page.contains(&option) || page.contains(&escaped), "--{option} of {name}");
        }
    }
    let main = loadmaster(&["man"]);
    for (name, _) in options() {
        assert!(main.contains(&name.replace('-', "\\-")), "{name}: {main}");
    }
}

#[test]
fn completions_of_every_shell_mention_every_option() {
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let text = loadmaster(&["completions", shell]);
        for (name, options) in options() {
            assert!(text.contains(&name), "{name} in {shell}");
            for option in options {
                assert!(text.contains(&option), "--{option} of {name} in {shell}");
            }
        }
    }
}

#[test]
fn no_line_of_help_is_wider_than_100_columns() {
    for (name, options) in options() {
        for flag in ["-h", "--help"] {
            let help = loadmaster(&[&name, flag]);
            assert!(options.iter().all(|o| help.contains(o.as_str())), "{name} {flag}: {help}");
            let widest = help.lines().max_by_key(|l| l.chars().count()).unwrap();
            assert!(widest.chars().count() <= 100, "{name} {flag}: {widest}");
        }
    }
}

#[test]
fn nothing_is_coloured_where_there_is_no_terminal() {
    let all: Vec<Vec<&str>> = vec![
        vec!["--help"],
        vec!["plan", "--help"],
        vec!["plan", "--no-longest"],
        vec!["plan", "--device", "nonsense"],
        vec!["plan", "--device", "sim:1MiB", "--ngl", "7", "--no-longest"],
        vec!["run", "--help"],
        vec!["--nonsense"],
    ];
    for arguments in all {
        let text = loadmaster(&arguments);
        assert!(!text.is_empty() && !text.contains('\u{1b}'), "{arguments:?}: {text}");
    }
}

#[test]
fn tables_fit_100_columns_with_long_names_and_many_devices() {
    let name = |i: usize| format!("sim:80GiB,name={}{i}", "a-device-with-a-very-long-name-".repeat(6));
    let specs: Vec<String> = (0..24).map(name).collect();
    let mut arguments = vec!["plan", "--no-longest", "--ngl", "7"];
    specs.iter().for_each(|s| arguments.extend(["--device", s]));
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("plan.json");
    let more = [&arguments[..], &["-o", path.to_str().unwrap()]].concat();
    let other = folder.path().join("other.json");
    // llama.cpp takes no more than 16 devices.
    let mut few = vec!["plan", "--ngl", "7", "--engine", "llama.cpp"];
    specs.iter().take(15).for_each(|s| few.extend(["--device", s]));
    let shares = ["--tensor-split", "0,1,2,3", "-o", other.to_str().unwrap()];
    let texts = [
        loadmaster(&more),
        loadmaster(&[&arguments[..], &shares].concat()),
        loadmaster(&few),
        loadmaster(&["diff", path.to_str().unwrap(), other.to_str().unwrap()]),
    ];
    for text in texts {
        let tables = text.lines().filter(|l| !l.starts_with("llama.cpp:"));
        for line in tables {
            assert!(line.chars().count() <= 100, "{line}");
        }
        assert!(text.contains("a-device-with"), "{text}");
    }
}
