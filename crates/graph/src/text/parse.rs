//! From text to a graph.

use crate::dtype::DType;
use crate::error::GraphError;
use crate::graph::Graph;
use crate::id::{Id, IdVec, LeafId, NodeId, TensorId};
use crate::limits::MAX_TENSORS;
use crate::op::Op;
use crate::tensor::{DIMS, Dims, Flags, Tensor, View, contiguous_strides};
use crate::units::Bytes;
use std::str::FromStr;

/// Why a text is no graph.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TextError {
    /// A line that does not follow the grammar.
    #[error("line {line}: expected {expected} at `{rest}`")]
    Syntax {
        /// The line, from 1.
        line: usize,
        /// What should stand there.
        expected: &'static str,
        /// The beginning of what stands there.
        rest: String,
    },
    /// Tensors, nodes or leafs whose numbers leave gaps or repeat.
    #[error("line {line}: {what} must be numbered in order, without gaps")]
    Numbering {
        /// The line, from 1.
        line: usize,
        /// Tensors, nodes or leafs.
        what: &'static str,
    },
    /// A graph that the verifier rejects.
    #[error(transparent)]
    Graph(#[from] GraphError),
}

impl Graph {
    /// Reads what [`Self::to_text`] wrote. Empty lines and lines that begin with `#` are skipped.
    ///
    /// Errors: [`TextError`], with the line. O(length).
    pub fn from_text(text: &str) -> Result<Self, TextError> {
        let mut lines = (1..).zip(text.lines()).filter(|(_, l)| !l.trim().is_empty() && !l.starts_with('#'));
        let (line, header) = lines.next().unwrap_or((1, ""));
        let mut cursor = Cursor { line, rest: header };
        cursor.expect("graph ", "`graph`")?;
        let name = cursor.name()?;
        cursor.end()?;
        let mut parts = Parts::default();
        for (line, rest) in lines {
            let mut cursor = Cursor { line, rest };
            parts.tensor(&mut cursor)?;
            cursor.end()?;
        }
        Ok(Self::new(name, parts.tensors, in_order(parts.nodes, "nodes")?, in_order(parts.leafs, "leafs")?)?)
    }
}

/// What the lines fill. Nodes and leafs come with their number and line: they are listed in the order of tensors.
#[derive(Default)]
struct Parts {
    tensors: IdVec<TensorId, Tensor>,
    nodes: Vec<(usize, usize, TensorId)>,
    leafs: Vec<(usize, usize, TensorId)>,
}

fn in_order<K: Id>(
    mut listed: Vec<(usize, usize, TensorId)>,
    what: &'static str,
) -> Result<IdVec<K, TensorId>, TextError> {
    listed.sort_unstable_by_key(|&(number, ..)| number);
    match listed.iter().enumerate().find(|(i, (number, ..))| i != number) {
        Some((_, &(_, line, _))) => Err(TextError::Numbering { line, what }),
        None => Ok(listed.into_iter().map(|(.., id)| id).collect()),
    }
}

impl Parts {
    fn tensor(&mut self, cursor: &mut Cursor<'_>) -> Result<(), TextError> {
        let id: TensorId = cursor.id("t", "a tensor id")?;
        if id.index() != self.tensors.len() {
            return Err(TextError::Numbering { line: cursor.line, what: "tensors" });
        }
        cursor.expect(" ", "a space")?;
        if cursor.eat("leaf") {
            self.leafs.push((cursor.number::<LeafId>()?.index(), cursor.line, id));
        } else if cursor.eat("n") {
            self.nodes.push((cursor.number::<NodeId>()?.index(), cursor.line, id));
        } else {
            cursor.expect("-", "`n`, `leaf` or `-`")?;
        }
        cursor.expect(" ", "a space")?;
        self.tensors.push(described(cursor)?);
        Ok(())
    }
}

/// From the name on.
fn described(cursor: &mut Cursor<'_>) -> Result<Tensor, TextError> {
    let name = cursor.name()?;
    cursor.expect(" ", "a space")?;
    let dtype = cursor.word(DType::from_name, "a type")?;
    cursor.expect(" ", "a space")?;
    let ne = cursor.extents()?;
    let strides =
        if cursor.eat(" strides ") { Some(cursor.four("four strides")?) } else { contiguous_strides(dtype, &ne) };
    let nb = strides.ok_or_else(|| cursor.error("strides, because these extents have none of their own"))?;
    let mut tensor = Tensor { name, dtype, ne, nb, ..blank() };
    if cursor.eat(" = ") {
        tensor.op = cursor.word(Op::from_name, "an operation")?;
        cursor.expect("(", "`(`")?;
        tensor.src = cursor.list_until(")", Cursor::source)?.into();
    }
    if cursor.eat(" params [") {
        tensor.params = cursor.list_until("]", |c| c.integer("a parameter word"))?.into();
    }
    if cursor.eat(" view ") {
        let root = cursor.id("t", "a tensor id")?;
        cursor.expect("+", "`+`")?;
        tensor.view = Some(View { root, offset: Bytes(cursor.integer("an offset in bytes")?) });
    }
    if cursor.eat(" flags [") {
        let flags = cursor.list_until("]", |c| c.word(flag, "a flag"))?;
        tensor.flags = flags.into_iter().fold(Flags::NONE, Flags::with);
    }
    Ok(tensor)
}

fn flag(name: &str) -> Option<Flags> {
    Flags::NAMED.into_iter().find(|&(_, n)| n == name).map(|(flag, _)| flag)
}

fn blank() -> Tensor {
    Tensor {
        name: "".into(),
        dtype: DType::F32,
        ne: [1; DIMS],
        nb: [0; DIMS],
        op: Op::None,
        params: Default::default(),
        src: Default::default(),
        view: None,
        flags: Flags::NONE,
    }
}

/// What is left of a line.
struct Cursor<'a> {
    line: usize,
    rest: &'a str,
}

impl<'a> Cursor<'a> {
    fn error(&self, expected: &'static str) -> TextError {
        let rest = self.rest.chars().take(24).collect();
        TextError::Syntax { line: self.line, expected, rest }
    }

    fn eat(&mut self, literal: &str) -> bool {
        match self.rest.strip_prefix(literal) {
            Some(rest) => {
                self.rest = rest;
                true
            }
            None => false,
        }
    }

    fn expect(&mut self, literal: &str, what: &'static str) -> Result<(), TextError> {
        if self.eat(literal) { Ok(()) } else { Err(self.error(what)) }
    }

    fn end(&self) -> Result<(), TextError> {
        if self.rest.trim_end().is_empty() { Ok(()) } else { Err(self.error("the end of the line")) }
    }

    /// The characters up to the first that is not part of a word.
    fn peek_word(&self) -> &'a str {
        let end = self.rest.find(|c: char| !c.is_ascii_alphanumeric() && c != '_').unwrap_or(self.rest.len());
        &self.rest[..end]
    }

    fn word<T>(&mut self, parse: impl Fn(&str) -> Option<T>, what: &'static str) -> Result<T, TextError> {
        let word = self.peek_word();
        let value = parse(word).ok_or_else(|| self.error(what))?;
        self.rest = &self.rest[word.len()..];
        Ok(value)
    }

    fn integer<T: FromStr>(&mut self, what: &'static str) -> Result<T, TextError> {
        self.word(|word| word.parse().ok(), what)
    }

    fn number<K: Id>(&mut self) -> Result<K, TextError> {
        let small = |word: &str| word.parse().ok().filter(|&n: &usize| n < MAX_TENSORS).map(K::from_index);
        self.word(small, "a number below the limit of tensors")
    }

    fn id<K: Id>(&mut self, prefix: &str, what: &'static str) -> Result<K, TextError> {
        self.expect(prefix, what)?;
        self.number()
    }

    fn source(&mut self) -> Result<Option<TensorId>, TextError> {
        if self.eat("_") { Ok(None) } else { self.id("t", "a source: a tensor id or `_`").map(Some) }
    }

    /// Items with `, ` between them, up to `close`.
    fn list_until<T>(
        &mut self,
        close: &str,
        mut item: impl FnMut(&mut Self) -> Result<T, TextError>,
    ) -> Result<Vec<T>, TextError> {
        let mut items = Vec::new();
        if self.eat(close) {
            return Ok(items);
        }
        loop {
            items.push(item(self)?);
            if self.eat(close) {
                return Ok(items);
            }
            self.expect(", ", "`, ` or the end of the list")?;
        }
    }

    fn extents(&mut self) -> Result<Dims, TextError> {
        let before = Self { line: self.line, rest: self.rest };
        self.expect("[", "extents")?;
        let given = self.list_until("]", |c| c.integer("an extent"))?;
        if given.is_empty() || given.len() > DIMS {
            return Err(before.error("one to four extents"));
        }
        let mut ne = [1; DIMS];
        ne[..given.len()].copy_from_slice(&given);
        Ok(ne)
    }

    fn four(&mut self, what: &'static str) -> Result<Dims, TextError> {
        let before = Self { line: self.line, rest: self.rest };
        self.expect("[", what)?;
        self.list_until("]", |c| c.integer("a stride"))?.try_into().map_err(|_| before.error(what))
    }

    fn name(&mut self) -> Result<Box<str>, TextError> {
        self.expect("\"", "a name in quotation marks")?;
        let mut name = String::new();
        loop {
            let end = self.rest.find(['"', '\\']).ok_or_else(|| self.error("a quotation mark"))?;
            name.push_str(&self.rest[..end]);
            self.rest = &self.rest[end..];
            if self.eat("\"") {
                return Ok(name.into());
            }
            self.expect("\\u{", "`\\u{`")?;
            let escaped = |word: &str| u32::from_str_radix(word, 16).ok().and_then(char::from_u32);
            name.push(self.word(escaped, "the number of a character")?);
            self.expect("}", "`}`")?;
        }
    }
}
