//! What the browser shows.

use crate::browser::Browser;
use crate::canned::{HOSTILE, MANY, canned};
use crate::fixture::Fixture;
use serde_json::{Value, json};

pub const WIDE: (u32, u32) = (1280, 900);
pub const NARROW: (u32, u32) = (390, 844);

/// All is asked for, and drawn.
const DRAWN: &str = "document.querySelector('#arena-facts [data-field=size]') && document.querySelector('#trace-facts data') \
                     && document.querySelector('#stats data').value !== '' && document.querySelectorAll('.device').length === 3";

fn open(size: (u32, u32), scheme: &str) -> Option<(Browser, Fixture)> {
    let mut browser = Browser::start()?;
    let fixture = Fixture::start(canned());
    browser.open(&fixture.url(), size, scheme);
    browser.until(DRAWN);
    browser.until("document.getElementById('connection').dataset.state === 'live'");
    Some((browser, fixture))
}

/// Pixels of a canvas that have a custom property's colour.
pub fn pixels(browser: &mut Browser, canvas: &str, colour: &str) -> u64 {
    let script = format!(
        "(() => {{ const c = document.querySelector('{canvas}'), p = document.createElement('canvas').getContext('2d');
        p.fillStyle = getComputedStyle(c).getPropertyValue('--{colour}'); p.fillRect(0, 0, 1, 1);
        const [r, g, b] = p.getImageData(0, 0, 1, 1).data, d = c.getContext('2d').getImageData(0, 0, c.width, c.height).data;
        let n = 0; for (let i = 0; i < d.length; i += 4) n += d[i] === r && d[i + 1] === g && d[i + 2] === b; return n; }})()"
    );
    browser.eval(&script).as_u64().unwrap()
}

pub fn value(browser: &mut Browser, selector: &str) -> u64 {
    let text = browser.eval(&format!("document.querySelector(`{selector}`).value"));
    text.as_str().unwrap().parse().unwrap_or_else(|_| panic!("{selector}: {text}"))
}

#[test]
fn numbers_on_the_page_are_those_of_the_api() {
    let Some((mut browser, _fixture)) = open(WIDE, "light") else { return };
    let said = canned();
    for device in said.placement["devices"].as_array().unwrap() {
        let at = format!(".device[data-device=\"{}\"]", device["name"].as_str().unwrap());
        for field in ["used", "limit", "free"] {
            let shown = value(&mut browser, &format!("{at} > header [data-field={field}]"));
            assert_eq!(device[field], shown, "{at} {field}");
        }
        for (i, model) in device["models"].as_array().unwrap().iter().enumerate() {
            for field in ["weights", "kv", "compute", "compute_bound"] {
                let row = format!("{at} tbody tr:nth-child({}) [data-field={field}]", i + 1);
                assert_eq!(model[field], value(&mut browser, &row), "{at} {field}");
            }
        }
    }
    for field in ["queue", "running", "bytes_moved", "plans_made", "plans_reused", "requests", "failures"] {
        assert_eq!(said.stats[field], value(&mut browser, &format!("#stats [data-field={field}]")), "{field}");
    }
    let arena = &said.arenas[&("stories".to_owned(), "sim0".to_owned(), "decode".to_owned())];
    for field in ["size", "bound", "steps"] {
        assert_eq!(arena[field], value(&mut browser, &format!("#arena-facts [data-field={field}]")), "{field}");
    }
    assert_eq!(value(&mut browser, "#arena-facts [data-field=tensors]"), MANY as u64);
    // The peak is made of what is alive there, and nothing else.
    assert_eq!(arena["bound"], value(&mut browser, "#arena-peak [data-field=peak]"));
    assert_eq!(value(&mut browser, "#trace-facts [data-field=copied]"), 4 * (4096 + 8192));
    let causes = "[...document.querySelectorAll('.model[data-model=stories] tbody tr')].map((r) => r.innerText)";
    let rows = browser.eval(causes);
    assert_eq!(rows.as_array().unwrap().len(), 3, "three runs of layers: {rows}");
    assert!(rows[1].as_str().unwrap().contains("was on sim0"), "{rows}");
    assert!(browser.complaints.is_empty(), "{:?}", browser.complaints);
}

#[test]
fn widths_and_schemes_are_drawn_without_overflow() {
    for (size, name) in [(WIDE, "1280"), (NARROW, "390")] {
        for scheme in ["light", "dark"] {
            let Some((mut browser, _fixture)) = open(size, scheme) else { return };
            let width = browser.eval("document.documentElement.scrollWidth");
            assert!(width.as_u64().unwrap() <= u64::from(size.0), "{name}: the page is {width} wide");
            browser.until("document.querySelector('#arena-chart canvas').width > 100");
            for (canvas, kinds) in [
                ("#arena-chart canvas", &["op-product", "op-norm", "op-element", "copy", "bound"][..]),
                ("#trace-chart canvas", &["compute", "copy", "sync"]),
            ] {
                for kind in kinds {
                    assert!(pixels(&mut browser, canvas, kind) > 20, "{name} {scheme}: no {kind} in {canvas}");
                }
            }
            let page = browser.eval("getComputedStyle(document.documentElement).backgroundColor");
            assert_eq!(page == "rgb(13, 17, 23)", scheme == "dark", "{page}");
            browser.screenshot(&format!("{name}-{scheme}"));
            assert!(browser.complaints.is_empty(), "{:?}", browser.complaints);
        }
    }
}

#[test]
fn the_keyboard_reaches_every_control_and_walks_through_the_arena() {
    let Some((mut browser, _fixture)) = open(WIDE, "light") else { return };
    let mut reached = Vec::new();
    for _ in 0..40 {
        browser.press("Tab");
        let at = browser.eval(
            "(() => { const a = document.activeElement; return a.id || a.dataset.key || a.className || a.tagName; })()",
        );
        let ring = browser.eval("getComputedStyle(document.activeElement).outlineStyle");
        let at = at.as_str().unwrap().to_owned();
        if at == "BODY" {
            break;
        }
        assert_eq!(ring, "solid", "{at} shows no focus");
        reached.push(at);
    }
    for control in [
        "skip",
        "open sim0 stories",
        "arena-model",
        "arena-graph",
        "arena-chart-canvas",
        "trace-chart-canvas",
        "log-body",
    ] {
        assert!(reached.iter().any(|r| r == control), "{control} was not reached: {reached:?}");
    }
    browser.eval("document.querySelector('#arena-chart canvas').focus()");
    let selected = |b: &mut Browser| b.eval("document.querySelector('#arena-chart canvas').dataset.selected");
    browser.press("ArrowRight");
    let first = selected(&mut browser);
    browser.press("ArrowRight");
    assert_ne!(first, selected(&mut browser));
    browser.press("Home");
    assert_eq!(first, selected(&mut browser));
    browser.press("p");
    let told = browser.eval("document.querySelector('#arena-chart [role=status]').textContent");
    let told = told.as_str().unwrap();
    assert!(["op ", "bytes ", "life steps ", "cause first place"].iter().all(|t| told.contains(t)), "{told}");
    let before = pixels(&mut browser, "#arena-chart canvas", "op-product");
    browser.press("+");
    browser.press("+");
    browser.eval("new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))");
    assert_ne!(before, pixels(&mut browser, "#arena-chart canvas", "op-product"), "zooming draws something else");
    browser.press("Escape");
    assert_eq!(selected(&mut browser), "");
}

#[test]
fn hovering_tells_name_operation_bytes_cause_and_life() {
    let Some((mut browser, _fixture)) = open(WIDE, "dark") else { return };
    browser.eval("document.querySelector('#arena-graph').value = 'prompt'; document.querySelector('#arena-graph').dispatchEvent(new Event('change'))");
    browser.until("document.querySelector('#arena-facts [data-field=tensors]')?.value === '36'");
    browser.eval("document.querySelector('#arena').scrollIntoView()");
    browser.eval("new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))");
    let place = browser.eval("(() => { const r = document.querySelector('#arena-chart canvas').getBoundingClientRect(); return [r.x, r.y, r.width, r.height]; })()");
    let at = |i: usize| place[i].as_f64().unwrap();
    browser.hover(at(0) + at(2) / 2.0, at(1) + at(3) - 30.0);
    browser.until("!document.querySelector('#arena-chart .tip').hidden");
    let told = browser.eval("document.querySelector('#arena-chart .tip').innerText");
    let told = told.as_str().unwrap();
    assert!(["op", "bytes", "life", "cause", "first place that was free"].iter().all(|t| told.contains(t)), "{told}");
    browser.screenshot("hover");
}

#[test]
fn an_arena_of_six_thousand_tensors_is_drawn_once_and_kept() {
    let Some((mut browser, _fixture)) = open(WIDE, "light") else { return };
    // Walking draws the kept picture and a frame: rectangles are not drawn again.
    let fills = browser.eval(
        "(async () => { const c = document.querySelector('#arena-chart canvas'); c.focus();
        const frame = () => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)));
        const of = CanvasRenderingContext2D.prototype, fill = of.fillRect; let n = 0;
        await frame(); of.fillRect = function (...a) { n += 1; return fill.apply(this, a); };
        for (let i = 0; i < 50; i += 1) { c.dispatchEvent(new KeyboardEvent('keydown', { key: 'ArrowRight' })); await frame(); }
        const walking = n; c.dispatchEvent(new KeyboardEvent('keydown', { key: '0' })); await frame();
        of.fillRect = fill; return [walking, n]; })()",
    );
    assert_eq!(fills[0], 0, "walking redraws nothing");
    assert!(fills[1].as_u64().unwrap() >= MANY as u64, "{fills}");
}

#[test]
fn what_happens_is_shown_as_it_happens() {
    let Some((mut browser, fixture)) = open(WIDE, "light") else { return };
    fixture.change(|said| {
        said.placement["version"] = json!(2);
        said.placement["devices"][1]["models"][0]["kv"] = json!(123_456_789);
    });
    let event =
        json!({ "seq": 7, "at_us": 5_000_000, "kind": "grow", "device": "sim1", "bytes": 2048, "model": HOSTILE });
    assert!(fixture.send(event.clone()) > 0, "the page listens");
    browser.until("document.querySelector('.device[data-device=sim1] [data-field=kv]').value === '123456789'");
    browser.until("document.getElementById('version').textContent === 'plan 2'");
    let line = browser.eval("document.querySelector('#log-body li').innerText");
    assert!(line.as_str().unwrap().contains("grow") && line.as_str().unwrap().contains("2.00 KiB"), "{line}");
    fixture.send(event);
    fixture.send(json!({ "seq": 8, "at_us": 6_000_000, "kind": "stats", "tokens_per_second": 99.5, "queue": 12 }));
    browser.until("document.querySelector('#stats [data-field=tokens_per_second]').value === '99.5'");
    browser.until("document.querySelectorAll('#log-body li').length === 1");
}

#[test]
fn names_from_model_files_never_become_markup() {
    let Some((mut browser, fixture)) = open(WIDE, "light") else { return };
    fixture.send(json!({ "seq": 1, "at_us": 1, "kind": "failure", "message": HOSTILE, HOSTILE: HOSTILE }));
    browser.until("document.querySelector('#log-body li.empty') === null");
    assert_eq!(browser.eval("document.title"), Value::from("loadmaster"));
    assert_eq!(browser.eval("document.querySelectorAll('img').length"), 0);
    let shown = browser.eval("document.body.innerText");
    assert!(shown.as_str().unwrap().contains(HOSTILE));
}

#[test]
fn a_service_that_wants_a_token_gets_the_one_that_is_typed() {
    let Some(mut browser) = Browser::start() else { return };
    let fixture = Fixture::start(canned());
    fixture.change(|said| said.token = Some("secret"));
    browser.open(&fixture.url(), WIDE, "light");
    browser.until("!document.getElementById('token-form').hidden");
    assert_eq!(browser.eval("document.getElementById('connection').textContent"), "needs a token");
    browser.eval("document.getElementById('token').focus()");
    for letter in ["s", "e", "c", "r", "e", "t"] {
        browser.press(letter);
    }
    browser.press("Enter");
    browser.until(DRAWN);
    browser.until("document.getElementById('connection').dataset.state === 'live'");
    assert_eq!(browser.eval("document.getElementById('token-form').hidden"), true);
    // A token in the address is taken out of it.
    browser.open(&format!("{}#token=secret", fixture.url()), WIDE, "light");
    browser.until("location.hash === ''");
}
