//! Cases for people.

use crate::file::GraphFile;

/// A case for people: a line a device, a buffer, a tensor.
pub fn describe(file: &GraphFile) -> String {
    use std::fmt::Write;
    let mut text = format!("  n_copies {}, op_offload {}\n", file.n_copies, file.op_offload);
    // Writing to a string cannot fail.
    for (i, d) in file.devices.iter().enumerate() {
        let t = &d.buffer_type;
        let max = t.max_size.map_or(String::new(), |m| format!(" chunks of {m}"));
        let host = if t.host { " host" } else { "" };
        let _ = write!(text, "  device {i} {:?} {}{host} align {}{max}", d.kind, t.name, t.alignment);
        let _ = writeln!(
            text,
            "{}",
            if d.unsupported.is_empty() { String::new() } else { format!(" not {:?}", d.unsupported) }
        );
    }
    for b in &file.buffers {
        let host = if b.host { " host" } else { "" };
        let _ = writeln!(text, "  buffer {} {} {:?}{host} usable by {:?}", b.id, b.buffer_type, b.usage, b.usable_by);
    }
    if file.tensors.len() > 80 {
        let _ = writeln!(text, "  {} tensors, {} nodes", file.tensors.len(), file.nodes.len());
        return text;
    }
    for t in &file.tensors {
        let place = if file.nodes.contains(&t.id) {
            "node"
        } else if file.leafs.contains(&t.id) {
            "leaf"
        } else {
            "tensor"
        };
        let src = t.src.iter().map(|s| s.map_or("-".to_owned(), |s| s.to_string())).collect::<Vec<_>>().join(",");
        let _ = write!(text, "  {place} {} {} {} {:?} [{src}]", t.id, t.op, t.dtype, t.ne);
        if let Some(root) = t.view_src {
            let _ = write!(text, " view of {root}+{} nb {:?}", t.view_offs.unwrap_or(0), t.nb);
        }
        if let Some(b) = t.buffer {
            let _ = write!(text, " in buffer {b}");
        }
        if t.external {
            let _ = write!(text, " external");
        }
        if let Some(d) = file.pinned.get(&t.id) {
            let _ = write!(text, " pinned to {d}");
        }
        let _ = writeln!(text, " {}", t.flags.join(" "));
    }
    for (tensor, until) in &file.keep_until {
        let _ = writeln!(text, "  {tensor} is kept until {until}");
    }
    let _ = writeln!(text, "  nodes {:?} leafs {:?}", file.nodes, file.leafs);
    text
}
