//! The dashboard in headless Chromium against a service with canned answers: what is drawn is what the API said.

#![allow(clippy::unwrap_used, clippy::panic)]

mod browser;
mod canned;
mod files;
mod fixture;
mod page;
mod service;
