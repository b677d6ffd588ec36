//! The service: plans, models and generation over HTTP, and a page that shows where everything lies.

pub mod dashboard;
