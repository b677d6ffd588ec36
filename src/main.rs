//! The `loadmaster` command.
fn main() {}
