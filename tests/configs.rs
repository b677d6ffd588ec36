//! Machine files: all of ours load, and every limit and contradiction is refused with its place.
#![allow(clippy::unwrap_used, clippy::panic, reason = "helpers of tests fail loudly")]

use loadmaster::config::{Config, ConfigError, MAX_BUFFER_TYPES, MAX_DEVICES, MAX_FILE_BYTES, MAX_LINKS, MAX_POOLS};
use loadmaster::plan::saved::SavedPlan;
use loadmaster_graph::{Bytes, Op};
use loadmaster_sched::Machine;
use std::path::Path;

fn configs() -> Vec<(String, Machine)> {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("configs");
    let mut files: Vec<_> = dir.read_dir().unwrap().map(|e| e.unwrap().path()).collect();
    files.sort();
    let load = |path: &Path| {
        let config = Config::read_path(path).unwrap_or_else(|e| panic!("{e}"));
        assert!(!config.name.is_empty());
        (path.file_name().unwrap().to_string_lossy().into_owned(), config.machine)
    };
    files.iter().filter(|p| p.extension().is_some_and(|e| e == "toml")).map(|p| load(p)).collect()
}

#[test]
fn every_machine_file_in_configs_loads_and_falls_back_to_its_host() {
    let configs = configs();
    assert!(configs.len() >= 6, "{}", configs.len());
    for (file, machine) in &configs {
        let fallback = machine.device(machine.fallback());
        assert_eq!(&*fallback.name, "CPU", "{file}");
        assert!(machine.compute_type(machine.fallback()).host, "{file}");
        assert!(machine.supports(machine.fallback(), Op::MulMat), "{file}");
    }
    let machine = |name: &str| &configs.iter().find(|(file, _)| file == name).unwrap().1;
    assert_eq!(machine("sim-8x80.toml").devices().len(), 9);
    let chunked = machine("sim-1x24-chunk256m.toml");
    assert_eq!(chunked.buffer_types().values().next().unwrap().max_size, Some(Bytes::mib(256)));
    let unified = machine("unified-apu.toml");
    let devices: Vec<_> = unified.devices().ids().collect();
    assert!(unified.can_read(devices[0], devices[1]) && unified.can_read(devices[1], devices[0]));
}

/// A machine that is right, in parts that tests replace.
const POOL: &str = "[[pool]]\nname = \"ram\"\nkind = \"host\"\ncapacity = \"1GiB\"\n";
const TYPE: &str = "[[buffer_type]]\nname = \"CPU\"\npool = \"ram\"\nhost = true\nusable_by = [\"CPU\"]\n";
const DEVICE: &str = "[[device]]\nname = \"CPU\"\nkind = \"cpu\"\nbuffer_type = \"CPU\"\n";

fn fails(parts: &[&str]) -> String {
    let text = format!("name = \"m\"\n{}", parts.concat());
    Config::parse(&text).unwrap_err().to_string()
}

#[test]
fn the_machine_that_the_rejection_tests_break_is_right() {
    let config = Config::parse(&format!("name = \"m\"\n{POOL}{TYPE}{DEVICE}")).unwrap();
    assert_eq!(config.name, "m");
}

#[test]
fn every_contradiction_is_refused_with_its_place() {
    let gpu = |driver: &str| DEVICE.replace("kind = \"cpu\"", &format!("kind = \"gpu\"\n{driver}"));
    let link = |text: &str| format!("[[link]]\nfrom = \"CPU\"\npath = \"peer\"\nbandwidth = \"1GiB\"\n{text}\n");
    let cases: Vec<(Vec<String>, &str)> = vec![
        (vec![], "no device"),
        (vec!["speed = 3\n".into()], "speed"),
        (vec![POOL.replace("host\"", "fast\"")], "fast"),
        (vec![POOL.replace("1GiB", "1GX")], "pool `ram`: capacity"),
        (vec![POOL.replace("1GiB", "0B"), TYPE.into(), DEVICE.into()], "capacity of 0"),
        (vec![POOL.into(), POOL.into(), TYPE.into(), DEVICE.into()], "two pools are named `ram`"),
        (
            vec![POOL.into(), TYPE.replace("pool = \"ram\"", "pool = \"rom\""), DEVICE.into()],
            "there is no pool `rom`; there are ram",
        ),
        (
            vec![POOL.into(), TYPE.replace("[\"CPU\"]", "[\"GPU\"]"), DEVICE.into()],
            "usable_by: there is no device `GPU`",
        ),
        (vec![POOL.into(), format!("{TYPE}alignment = 48\n"), DEVICE.into()], "alignment of 48"),
        (vec![POOL.into(), format!("{TYPE}row_padding = 48\n"), DEVICE.into()], "row padding of 48"),
        (vec![POOL.into(), format!("{TYPE}max_size = \"16B\"\n"), DEVICE.into()], "smaller than the alignment"),
        (vec![POOL.into(), format!("{TYPE}max_size = \"2GiB\"\n"), DEVICE.into()], "more than the pool holds"),
        (vec![POOL.into(), format!("{TYPE}max_size = \"big\"\n"), DEVICE.into()], "max_size: `big`"),
        (
            vec![POOL.replace("kind = \"host\"", "kind = \"device\""), TYPE.into(), DEVICE.into()],
            "a device's own memory",
        ),
        (vec![POOL.into(), TYPE.replace("[\"CPU\"]", "[]"), DEVICE.into()], "which it cannot use in place"),
        (
            vec![POOL.into(), TYPE.into(), DEVICE.replace("buffer_type = \"CPU\"", "buffer_type = \"X\"")],
            "no buffer type `X`",
        ),
        (vec![POOL.into(), TYPE.into(), DEVICE.into(), DEVICE.into()], "two devices are named `CPU`"),
        (vec![POOL.into(), TYPE.into(), format!("{DEVICE}pools = [\"x\"]\n")], "no pool `x`"),
        (vec![POOL.into(), TYPE.into(), format!("{DEVICE}unsupported_ops = [\"FLY\"]\n")], "no operation `FLY`"),
        (vec![POOL.into(), TYPE.into(), format!("{DEVICE}driver = \"sim\"\n")], "drives no cpu"),
        (vec![POOL.into(), TYPE.into(), gpu("driver = \"host\"\n")], "drives no gpu"),
        (vec![POOL.into(), TYPE.into(), gpu("driver = \"cuda:x\"\n")], "write sim or cuda:N"),
        (vec![POOL.into(), TYPE.into(), gpu("")], "write sim or cuda:N"),
        (
            vec!["fallback = \"GPU\"\n".into(), POOL.into(), TYPE.into(), DEVICE.into()],
            "fallback: there is no device `GPU`",
        ),
        (vec![POOL.into(), TYPE.into(), DEVICE.into(), link("to = \"GPU\"")], "link 0: to: there is no device `GPU`"),
        (vec![POOL.into(), TYPE.into(), DEVICE.into(), link("to = \"CPU\"")], "from `CPU` to itself"),
        (
            vec![POOL.into(), TYPE.into(), DEVICE.into(), link("to = \"CPU\"").replace("1GiB", "fast")],
            "link 0: bandwidth",
        ),
        (vec![POOL.into(), TYPE.into(), DEVICE.into(), link("to = \"CPU\"").replace("peer", "warp")], "warp"),
        (
            vec![POOL.replace("\"ram\"", "\"\""), TYPE.replace("pool = \"ram\"", "pool = \"\""), DEVICE.into()],
            "has no name",
        ),
    ];
    for (parts, words) in cases {
        let parts: Vec<&str> = parts.iter().map(String::as_str).collect();
        let error = fails(&parts);
        assert!(error.contains(words), "no `{words}` in: {error}");
    }
}

#[test]
fn every_limit_of_a_machine_file_is_enforced() {
    let many = |one: &str, count: usize| one.repeat(count);
    let limit = |text: String, what: &str| {
        let error = Config::parse(&text).unwrap_err();
        assert!(matches!(error, ConfigError::Limit { what: found, .. } if found == what), "{what}: {error}");
    };
    let name = "name = \"m\"\n";
    // As short as the schema allows, so that the limit on bytes is not met first.
    limit(
        format!("{name}device=[{}]", many("{name=\"a\",kind=\"cpu\",buffer_type=\"b\"},", MAX_DEVICES + 1)),
        "devices",
    );
    limit(format!("{name}pool=[{}]", many("{name=\"a\",kind=\"host\"},", MAX_POOLS + 1)), "pools");
    let buffer_type = "{name=\"a\",pool=\"p\",usable_by=[]},";
    limit(format!("{name}buffer_type=[{}]", many(buffer_type, MAX_BUFFER_TYPES + 1)), "buffer types");
    limit(format!("name = \"{}\"\n", "n".repeat(257)), "bytes of a name");
    limit(format!("{name}# {}", "x".repeat(MAX_FILE_BYTES as usize)), "bytes of the file");
    let link = "{from=\"\",to=\"\",path=\"peer\",bandwidth=\"\"},";
    assert!(link.len() * (MAX_LINKS + 1) < MAX_FILE_BYTES as usize, "the limit can be met");
    limit(format!("{name}link=[{}]", many(link, MAX_LINKS + 1)), "links");
}

#[test]
fn a_file_that_is_too_long_is_not_read() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("long.toml");
    std::fs::write(&path, vec![b'#'; MAX_FILE_BYTES as usize + 1]).unwrap();
    let error = Config::read_path(&path).unwrap_err().to_string();
    assert!(error.contains("long.toml") && error.contains("exceeds the limit"), "{error}");
}

#[test]
#[cfg(unix)]
fn a_file_without_end_is_read_to_the_limit_only() {
    let endless = Path::new("/dev/zero");
    let error = Config::read_path(endless).unwrap_err().to_string();
    assert!(error.contains("bytes of the file") && error.contains("exceeds the limit"), "{error}");
    let error = SavedPlan::read(endless).unwrap_err().to_string();
    assert!(error.contains("exceed the limit"), "{error}");
}

#[test]
fn a_syntax_error_names_its_line() {
    let error = fails(&[POOL, "kind = \n"]);
    assert!(error.contains("line 6"), "{error}");
}

#[test]
fn every_machine_file_in_configs_is_written_and_read_back_as_the_same_machine() {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("configs");
    for entry in dir.read_dir().unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_none_or(|e| e != "toml") {
            continue;
        }
        let mut config = Config::read_path(&path).unwrap();
        config.name = "quotes \" and \\ and ⌘".to_owned();
        for (i, speed) in config.speeds.values_mut().enumerate() {
            speed.bandwidth = (i % 2 == 0).then_some(Bytes(123_456_789_012 + i as u64));
            speed.flops = (i % 3 > 0).then_some(1.5e13 + i as f64);
        }
        let text = config.to_toml();
        assert_eq!(Config::parse(&text).unwrap_or_else(|e| panic!("{e}: {text}")), config, "{}", path.display());
    }
}

#[test]
fn speeds_that_make_no_sense_are_refused_with_their_device() {
    for (line, said) in [
        ("flops = 0.0", "flops: a speed of 0"),
        ("flops = -1.0", "flops: a speed of -1"),
        ("flops = nan", "flops: a speed of NaN"),
        ("flops = inf", "flops: a speed of inf"),
        ("flops = 1e19", "up to 1e18"),
        ("bandwidth = \"0B\"", "bandwidth: a speed of 0"),
        ("bandwidth = \"fast\"", "bandwidth"),
    ] {
        let error = fails(&[POOL, TYPE, &format!("{DEVICE}{line}\n")]);
        assert!(error.contains(said) && error.contains("CPU"), "{line}: {error}");
    }
    let config = Config::parse(&format!("name = \"m\"\n{POOL}{TYPE}{DEVICE}flops = 1e12\nbandwidth = \"50GiB\"\n"));
    let speed = config.unwrap().speeds.values().next().copied().unwrap();
    assert_eq!((speed.bandwidth, speed.flops), (Some(Bytes::gib(50)), Some(1e12)));
}
