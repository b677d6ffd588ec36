//! The text form and Graphviz.
#![allow(clippy::unwrap_used, clippy::panic)]

mod common;

use common::golden_paths;
use loadmaster_graph::{Bytes, DType, DeviceId, Graph, GraphBuilder, GraphError, GraphFile, Op, TensorId, TextError};

const TINY: &str = r#"graph "tiny \u{22}graph\u{22}"
t0 leaf0 "w" q8_0 [64, 32]
t1 leaf1 "x" f32 [64, 3] flags [input]
t2 n0 "y" f32 [32, 3] = MUL_MAT(t0, t1) params [10]
t3 n1 "y (view)" f32 [16, 3] strides [4, 128, 384, 384] = VIEW(t2) params [64] view t2+64
t4 n2 "node_2" f16 [16, 3] = CPY(t3, t4) flags [output]
t5 - "spare" f32 [1] = RELU(_)
"#;

#[test]
fn the_text_form_is_what_the_documentation_shows() {
    let mut b = GraphBuilder::new();
    let w = b.leaf("w", DType::Q8_0, &[64, 32]).unwrap();
    let x = b.leaf("x", DType::F32, &[64, 3]).unwrap();
    b.set_input(x).unwrap();
    let y = b.mul_mat(w, x).unwrap();
    b.set_name(y, "y").unwrap();
    b.set_precision(y, loadmaster_graph::builder::Precision::F32).unwrap();
    let part = b.view(y, &[16, 3], &[Bytes(128)], Bytes(64)).unwrap();
    let cast = b.cast(part, DType::F16).unwrap();
    b.set_name(cast, "").unwrap();
    b.set_output(cast).unwrap();
    b.expand(cast).unwrap();
    let text = b.finish("tiny \"graph\"").unwrap().to_text();
    let listed: Vec<_> = TINY.lines().filter(|line| !line.contains("spare")).collect();
    assert_eq!(text.lines().collect::<Vec<_>>(), listed);
}

#[test]
fn what_is_printed_is_parsed() {
    let graph = Graph::from_text(TINY).unwrap();
    assert_eq!(graph.to_text(), TINY);
    assert_eq!(graph.tensor(TensorId::new(5)).src[..], [None]);
    let with_remarks = format!("# a remark\n\n{TINY}\n# another\n");
    assert_eq!(Graph::from_text(&with_remarks).unwrap(), graph);
}

#[test]
fn every_golden_graph_survives_its_text_form() {
    for path in golden_paths() {
        let graph = GraphFile::read_path(path).unwrap().graph;
        let text = graph.to_text();
        assert_eq!(text.lines().count(), graph.tensors().len() + 1);
        assert!(Graph::from_text(&text).unwrap() == graph, "{}", graph.name());
    }
}

#[test]
fn names_of_any_characters_survive() {
    let name = "tab\t, line\nend\u{2028}, \"quoted\" \\ back, zero\0, é 漢 🦀";
    let mut b = GraphBuilder::new();
    let x = b.leaf(name, DType::F32, &[1]).unwrap();
    b.expand(x).unwrap();
    let graph = b.finish(name).unwrap();
    assert_eq!(graph.to_text().lines().count(), 2);
    assert_eq!(Graph::from_text(&graph.to_text()).unwrap(), graph);
}

#[test]
fn faults_name_the_line() {
    let check = |from: &str, to: &str, line: usize, expected: &str| {
        assert!(TINY.contains(from), "{from}");
        let error = Graph::from_text(&TINY.replacen(from, to, 1)).unwrap_err();
        let text = error.to_string();
        assert!(text.starts_with(&format!("line {line}: ")) && text.contains(expected), "{text}");
    };
    check("graph ", "grph ", 1, "`graph`");
    check("graph\\u{22}\"", "graph", 1, "quotation mark");
    check("\\u{22}", "\\n", 1, "`\\u{`");
    check("\\u{22}", "\\u{110000}", 1, "number of a character");
    check("t1 leaf1", "t2 leaf1", 3, "tensors must be numbered");
    check("leaf1", "leaf2", 3, "leafs must be numbered");
    check("n1", "n0", 5, "nodes must be numbered");
    check("n1", "n99999999", 5, "limit of tensors");
    check("leaf1", "root1", 3, "`n`, `leaf` or `-`");
    check("q8_0", "q8_9", 2, "a type");
    check("MUL_MAT", "MULMAT", 4, "an operation");
    check("[64, 32]", "[]", 2, "one to four extents");
    check("[64, 32]", "[1, 1, 1, 1, 1]", 2, "one to four extents");
    check("[64, 32]", "[64; 32]", 2, "end of the list");
    check("[64, 32]", "[64, -32]", 2, "an extent");
    check("[64, 32]", "[63, 32]", 2, "strides");
    check("128, 384, 384", "128, 384", 5, "four strides");
    check("(t0, t1)", "(t0, x)", 4, "a source");
    check("params [10]", "params [4294967296]", 4, "parameter word");
    check("t2+64", "t2-64", 5, "`+`");
    check("t2+64", "t2+far", 5, "offset in bytes");
    check("[input]", "[inputs]", 3, "a flag");
    check("[input]", "[input] twice", 3, "end of the line");
    let empty = Graph::from_text("").unwrap_err();
    assert!(matches!(empty, TextError::Syntax { line: 1, .. }));
}

#[test]
fn a_text_that_the_verifier_rejects() {
    let error = Graph::from_text(&TINY.replace("(t0, t1)", "(t0, t9)")).unwrap_err();
    assert!(matches!(error, TextError::Graph(GraphError::Dangling { .. })), "{error}");
}

#[test]
fn graphviz_shows_nodes_leafs_sources_and_devices() {
    let graph = Graph::from_text(TINY).unwrap();
    let plain = graph.to_dot();
    for line in [
        r#"digraph "tiny \"graph\"" {"#,
        r#"  t0 [shape=box, label="t0 w\nq8_0 [64, 32]"];"#,
        r#"  t2 [shape=ellipse, label="MUL_MAT\nt2 y\nf32 [32, 3]"];"#,
        "  t1 -> t2;",
        "  t3 -> t4;",
    ] {
        assert!(plain.lines().any(|l| l == line), "{line}\n{plain}");
    }
    assert!(!plain.contains("t4 -> t4") && !plain.contains("spare") && !plain.contains("cluster"));

    let device =
        |id: TensorId| (id.index() < 4).then(|| (DeviceId::new(id.index() % 2), format!("GPU {}", id.index() % 2)));
    let placed = graph.to_dot_placed(device);
    for line in [
        "  subgraph cluster_dev1 {",
        r##"    label="GPU 1"; color="#d9ead3";"##,
        r##"    t1 [shape=box, label="t1 x\nf32 [64, 3]", style=filled, fillcolor="#d9ead3"];"##,
        r#"  t4 [shape=ellipse, label="CPY\nt4 node_2\nf16 [16, 3]"];"#,
    ] {
        assert!(placed.lines().any(|l| l == line), "{line}\n{placed}");
    }
}

#[test]
fn graphviz_draws_a_root_that_is_no_source_dashed() {
    let text = "graph \"g\"\nt0 leaf0 \"a\" f32 [4]\nt1 leaf1 \"b\" f32 [4]\n\
                t2 n0 \"v\" f32 [2] = VIEW(t0) view t0+8\nt3 n1 \"w\" f32 [2] = SQR(t2) view t0+0\n";
    let graph = Graph::from_text(text).unwrap();
    assert_eq!(graph.tensor(TensorId::new(3)).op, Op::Sqr);
    let dot = graph.to_dot();
    assert_eq!(dot.matches("[style=dashed]").count(), 1);
    assert!(dot.contains("  t0 -> t3 [style=dashed];"));
}

#[test]
fn every_golden_graph_has_one_line_for_each_tensor_and_edge() {
    for path in golden_paths().into_iter().step_by(9) {
        let graph = GraphFile::read_path(path).unwrap().graph;
        let dot = graph.to_dot();
        assert_eq!(dot.matches(" [shape=").count(), graph.nodes().len() + graph.leafs().len());
        let sources: usize = graph.tensors().values().map(|t| t.src.iter().flatten().count()).sum();
        assert_eq!(dot.matches(" -> ").count() - dot.matches("dashed").count(), sources);
    }
}
