//! The files of the page, without a browser.

use axum::body::Body;
use axum::http::{Request, StatusCode};
use loadmaster::serve::dashboard;
use std::path::Path;
use tower::ServiceExt;

fn files() -> Vec<(String, String)> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/serve/dashboard");
    let mut found: Vec<(String, String)> = std::fs::read_dir(folder)
        .unwrap()
        .flatten()
        .map(|e| (e.file_name().to_string_lossy().into_owned(), std::fs::read_to_string(e.path()).unwrap()))
        .filter(|(name, _)| !name.ends_with(".rs"))
        .collect();
    found.sort();
    found
}

async fn status_and_type(path: &str) -> (StatusCode, String, bool) {
    let answer = dashboard::router::<()>().oneshot(Request::get(path).body(Body::empty()).unwrap()).await.unwrap();
    let header = |name| answer.headers().get(name).map(|v| v.to_str().unwrap().to_owned());
    let strict = header("content-security-policy").is_some_and(|p| p.contains("default-src 'none'"));
    (answer.status(), header("content-type").unwrap_or_default(), strict)
}

#[tokio::test]
async fn every_file_of_the_page_is_served_with_its_type_and_a_strict_policy() {
    assert_eq!(status_and_type("/").await, (StatusCode::OK, "text/html; charset=utf-8".to_owned(), true));
    for (name, _) in files().iter().filter(|(name, _)| name != "index.html") {
        let expected = if name.ends_with(".css") { "text/css" } else { "text/javascript" };
        let (status, kind, strict) = status_and_type(&format!("/dashboard/{name}")).await;
        assert_eq!((status, strict), (StatusCode::OK, true), "{name}");
        assert!(kind.starts_with(expected), "{name}: {kind}");
    }
    assert_eq!(status_and_type("/dashboard/mod.rs").await.0, StatusCode::NOT_FOUND);
}

#[test]
fn the_page_needs_nothing_from_elsewhere_and_makes_no_markup_of_strings() {
    let markup = ["innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(", "new Function", "srcdoc"];
    for (name, text) in files() {
        for banned in markup {
            assert!(!text.contains(banned), "{name} uses {banned}");
        }
        let elsewhere = text.replace("http://www.w3.org/2000/svg", "");
        assert!(!elsewhere.contains("://"), "{name} names another host");
        assert!(!text.contains(" style="), "{name} has styles in attributes, which the policy forbids");
    }
}
