//! The dashboard: one page that shows what the service's `/api/v1` says, live.
//!
//! The files are part of the program and are served as they are: no build step, nothing from elsewhere. The page holds
//! no data and needs no token; what it shows it asks `/api/v1` for, with the token that its user gave it. Names come from
//! model files: the page makes text nodes of them, never markup, and its policy forbids scripts but its own.

use axum::Router;
use axum::extract::Path;
use axum::http::{HeaderName, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;

/// A file of the page.
struct Asset {
    name: &'static str,
    kind: &'static str,
    text: &'static str,
}

const HTML: &str = "text/html; charset=utf-8";
const CSS: &str = "text/css; charset=utf-8";
const SCRIPT: &str = "text/javascript; charset=utf-8";

/// The page itself.
const PAGE: Asset = Asset { name: "index.html", kind: HTML, text: include_str!("index.html") };

/// What the page asks for, under `/dashboard/`.
const ASSETS: [Asset; 14] = [
    Asset { name: "page.css", kind: CSS, text: include_str!("page.css") },
    Asset { name: "charts.css", kind: CSS, text: include_str!("charts.css") },
    Asset { name: "main.js", kind: SCRIPT, text: include_str!("main.js") },
    Asset { name: "api.js", kind: SCRIPT, text: include_str!("api.js") },
    Asset { name: "dom.js", kind: SCRIPT, text: include_str!("dom.js") },
    Asset { name: "units.js", kind: SCRIPT, text: include_str!("units.js") },
    Asset { name: "chart.js", kind: SCRIPT, text: include_str!("chart.js") },
    Asset { name: "axes.js", kind: SCRIPT, text: include_str!("axes.js") },
    Asset { name: "paint.js", kind: SCRIPT, text: include_str!("paint.js") },
    Asset { name: "memory.js", kind: SCRIPT, text: include_str!("memory.js") },
    Asset { name: "arena.js", kind: SCRIPT, text: include_str!("arena.js") },
    Asset { name: "requests.js", kind: SCRIPT, text: include_str!("requests.js") },
    Asset { name: "layers.js", kind: SCRIPT, text: include_str!("layers.js") },
    Asset { name: "activity.js", kind: SCRIPT, text: include_str!("activity.js") },
];

/// Scripts, styles and connections from here only; nothing may frame the page.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; \
                      img-src 'self' data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

/// The page at `/` and its files at `/dashboard/…`. It needs no state and no authorisation.
pub fn router<S: Clone + Send + Sync + 'static>() -> Router<S> {
    Router::new().route("/", get(page)).route("/dashboard/{file}", get(file))
}

async fn page() -> Response {
    answer(&PAGE)
}

async fn file(Path(name): Path<String>) -> Response {
    ASSETS.iter().find(|asset| asset.name == name).map_or_else(|| StatusCode::NOT_FOUND.into_response(), answer)
}

fn answer(asset: &Asset) -> Response {
    let headers: [(HeaderName, &str); 5] = [
        (header::CONTENT_TYPE, asset.kind),
        (header::CONTENT_SECURITY_POLICY, POLICY),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (header::REFERRER_POLICY, "no-referrer"),
        // A newer program has a newer page.
        (header::CACHE_CONTROL, "no-cache"),
    ];
    (headers, asset.text).into_response()
}
