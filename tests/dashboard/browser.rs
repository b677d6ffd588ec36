//! Chromium over its debugging pipe: JSON messages that end in NUL, on descriptors 3 and 4.
//!
//! A shell puts the child's standard streams onto those descriptors, so that neither a socket nor unsafe code is needed.

use serde_json::{Value, json};
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

/// A browser with one page.
pub struct Browser {
    child: Child,
    to: ChildStdin,
    from: BufReader<ChildStdout>,
    next: u64,
    session: Option<String>,
    /// What scripts complained about.
    pub complaints: Vec<String>,
    _profile: tempfile::TempDir,
}

/// Moves the pipes to where Chromium looks for them.
const REDIRECT: &str = r#"exec "$0" "$@" 3<&0 4>&1 </dev/null >/dev/null 2>/dev/null"#;
const NAMES: [&str; 4] = ["chromium", "chromium-browser", "google-chrome", "google-chrome-stable"];

fn find() -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path).flat_map(|dir| NAMES.map(|name| dir.join(name))).find(|file| file.is_file())
}

impl Browser {
    /// Starts it with an empty page. `None`, with the reason printed, where there is no Chromium.
    pub fn start() -> Option<Self> {
        let Some(program) = find() else {
            eprintln!("skipped: no Chromium in PATH (Debian's package `chromium` has it)");
            return None;
        };
        let profile = tempfile::tempdir().unwrap();
        let flags = ["--headless=new", "--no-sandbox", "--disable-gpu", "--remote-debugging-pipe", "--no-first-run"];
        let quiet = ["--disable-extensions", "--disable-background-networking", "--hide-scrollbars", "--mute-audio"];
        let mut child = Command::new("sh")
            .args(["-c", REDIRECT])
            .arg(program)
            .args(flags)
            .args(quiet)
            .arg(format!("--user-data-dir={}", profile.path().display()))
            .arg("about:blank")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let (to, from) = (child.stdin.take().unwrap(), BufReader::new(child.stdout.take().unwrap()));
        let complaints = Vec::new();
        let mut browser = Self { child, to, from, next: 0, session: None, complaints, _profile: profile };
        browser.attach();
        Some(browser)
    }

    fn attach(&mut self) {
        let made = self.call("Target.createTarget", json!({ "url": "about:blank" }));
        let attached = json!({ "targetId": made["targetId"], "flatten": true });
        let session = self.call("Target.attachToTarget", attached);
        self.session = session["sessionId"].as_str().map(str::to_owned);
        for domain in ["Page.enable", "Runtime.enable", "Log.enable"] {
            self.call(domain, json!({}));
        }
    }

    /// Calls a method of the protocol and returns its result.
    pub fn call(&mut self, method: &str, params: Value) -> Value {
        self.next += 1;
        let mut message = json!({ "id": self.next, "method": method, "params": params });
        if let Some(session) = &self.session {
            message["sessionId"] = json!(session);
        }
        let mut bytes = serde_json::to_vec(&message).unwrap();
        bytes.push(0);
        self.to.write_all(&bytes).unwrap();
        self.to.flush().unwrap();
        loop {
            let answer = self.read();
            if answer["id"] == self.next {
                assert!(answer.get("error").is_none(), "{method}: {}", answer["error"]);
                return answer["result"].clone();
            }
            self.hear(&answer);
        }
    }

    fn read(&mut self) -> Value {
        let mut bytes = Vec::new();
        self.from.read_until(0, &mut bytes).unwrap();
        assert_eq!(bytes.pop(), Some(0), "the browser ended");
        serde_json::from_slice(&bytes).unwrap()
    }

    fn hear(&mut self, event: &Value) {
        let params = &event["params"];
        let bad = match event["method"].as_str() {
            Some("Runtime.exceptionThrown") => true,
            Some("Runtime.consoleAPICalled") => params["type"] == "error",
            Some("Log.entryAdded") => params["entry"]["level"] == "error",
            _ => false,
        };
        if bad {
            self.complaints.push(params.to_string());
        }
    }

    /// The value of an expression; a promise is awaited.
    pub fn eval(&mut self, expression: &str) -> Value {
        let params = json!({ "expression": expression, "awaitPromise": true, "returnByValue": true });
        let result = self.call("Runtime.evaluate", params);
        assert!(result.get("exceptionDetails").is_none(), "{expression}: {}", result["exceptionDetails"]);
        result["result"]["value"].clone()
    }

    /// Lets the page go on until an expression holds. The page looks again with each frame; it gives up after 1,200.
    pub fn until(&mut self, expression: &str) {
        let looks = format!(
            "new Promise((done) => {{ let left = 1200; const look = () => ({expression}) ? done(true) : left-- > 0 \
             ? requestAnimationFrame(look) : done(false); look(); }})"
        );
        assert_eq!(self.eval(&looks), true, "never came true: {expression}\n{}", self.complaints.join("\n"));
    }

    /// Opens an address in a window of the given size and scheme.
    pub fn open(&mut self, address: &str, (width, height): (u32, u32), scheme: &str) {
        let size = json!({ "width": width, "height": height, "deviceScaleFactor": 1, "mobile": false });
        self.call("Emulation.setDeviceMetricsOverride", size);
        let still = json!({ "name": "prefers-reduced-motion", "value": "reduce" });
        let media = json!({ "features": [{ "name": "prefers-color-scheme", "value": scheme }, still] });
        self.call("Emulation.setEmulatedMedia", media);
        self.call("Page.navigate", json!({ "url": address }));
        self.until("document.readyState === 'complete'");
    }

    /// Presses a key that makes no text, or one that does.
    pub fn press(&mut self, key: &str) {
        let code = match key {
            "Tab" => 9,
            "Enter" => 13,
            "Escape" => 27,
            "End" => 35,
            "Home" => 36,
            "ArrowLeft" => 37,
            "ArrowUp" => 38,
            "ArrowRight" => 39,
            "ArrowDown" => 40,
            _ => 0,
        };
        let text = if key == "Enter" {
            "\r"
        } else if key.len() == 1 {
            key
        } else {
            ""
        };
        let down = json!({ "type": "keyDown", "key": key, "code": key, "windowsVirtualKeyCode": code, "text": text });
        self.call("Input.dispatchKeyEvent", down);
        let up = json!({ "type": "keyUp", "key": key, "code": key, "windowsVirtualKeyCode": code });
        self.call("Input.dispatchKeyEvent", up);
    }

    /// Moves the pointer.
    pub fn hover(&mut self, x: f64, y: f64) {
        self.call("Input.dispatchMouseEvent", json!({ "type": "mouseMoved", "x": x, "y": y }));
    }

    /// Keeps a picture of the whole page under the target folder.
    pub fn screenshot(&mut self, name: &str) {
        let shot = self.call("Page.captureScreenshot", json!({ "format": "png", "captureBeyondViewport": true }));
        let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("dashboard");
        std::fs::create_dir_all(&folder).unwrap();
        std::fs::write(folder.join(format!("{name}.png")), decode(shot["data"].as_str().unwrap())).unwrap();
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        // Nothing is left to do for a browser that is gone already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Base 64 with the usual alphabet.
fn decode(text: &str) -> Vec<u8> {
    let value = |b: u8| match b {
        b'A'..=b'Z' => b - b'A',
        b'a'..=b'z' => b - b'a' + 26,
        b'0'..=b'9' => b - b'0' + 52,
        b'+' => 62,
        _ => 63,
    };
    let digits: Vec<u8> = text.bytes().filter(|&b| b != b'=').map(value).collect();
    let group = |four: &[u8]| {
        let bits = four.iter().enumerate().fold(0u32, |bits, (i, &d)| bits | u32::from(d) << (18 - 6 * i));
        bits.to_be_bytes()[1..four.len()].to_vec()
    };
    digits.chunks(4).flat_map(group).collect()
}
