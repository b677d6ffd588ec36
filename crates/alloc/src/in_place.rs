//! Which operations may write their result over which of their operands.
//!
//! It is a property of kernels, so each backend publishes a table; the allocator only applies it. A kernel qualifies if
//! it reads what it needs of an element (or of a row, for row-wise operations) before it writes the same element (row),
//! and if nothing else in the same operation reads the operand through another layout. The allocator makes sure of the
//! latter and that operand and result have the same type, extents and strides.

use loadmaster_graph::{Op, OpKind};

/// A set of operands.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub struct Operands(u16);

impl Operands {
    /// No operand.
    pub const NONE: Self = Self(0);
    /// The first.
    pub const FIRST: Self = Self(1);
    /// The first and the second.
    pub const FIRST_TWO: Self = Self(3);
    /// All of them.
    pub const ANY: Self = Self(u16::MAX);

    /// Whether the operand at a position is in the set.
    #[inline]
    #[must_use]
    pub const fn contains(self, operand: usize) -> bool {
        (self.0 >> if operand < 15 { operand } else { 15 }) & 1 == 1
    }

    /// Whether there are none.
    #[inline]
    #[must_use]
    pub const fn is_none(self) -> bool {
        self.0 == 0
    }
}

/// Whether an operand that is a view may be written over.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub enum ViewReuse {
    /// Never, as in the reference.
    Never,
    /// If the view covers its whole root and nothing else of the root is used afterwards.
    WholeRoot,
}

/// Which operations may write over which operands.
#[derive(Clone, PartialEq, Eq, Debug, Hash)]
pub struct InPlaceTable {
    operands: [Operands; Op::ALL.len()],
    views: ViewReuse,
}

/// Rule 4.3, without the unary operations.
const REFERENCE: [Op; 21] = [
    Op::Add,
    Op::Add1,
    Op::AddId,
    Op::Sub,
    Op::Mul,
    Op::Div,
    Op::Sqr,
    Op::Sqrt,
    Op::Log,
    Op::Scale,
    Op::Fill,
    Op::Clamp,
    Op::RmsNorm,
    Op::RmsNormBack,
    Op::SoftMax,
    Op::SoftMaxBack,
    Op::Rope,
    Op::RopeBack,
    Op::SiluBack,
    Op::DiagMaskZero,
    Op::DiagMaskInf,
];

/// Operations whose result depends, element by element, on the same elements of both operands.
const ELEMENT_WISE: [Op; 5] = [Op::Add, Op::Sub, Op::Mul, Op::Div, Op::SiluBack];

impl InPlaceTable {
    /// Nothing in place.
    #[must_use]
    pub const fn none() -> Self {
        Self { operands: [Operands::NONE; Op::ALL.len()], views: ViewReuse::Never }
    }

    /// The reference's list (rule 4.3): any operand, never through a view, no GLU.
    #[must_use]
    pub fn ggml() -> Self {
        let listed = REFERENCE.into_iter();
        let unary = Op::ALL.iter().copied().filter(|op| op.kind() == OpKind::Unary);
        listed.chain(unary).fold(Self::none(), |table, op| table.allow(op, Operands::ANY))
    }

    /// The reference's list narrowed to operands that are safe for every kernel, widened by GLU operations with two
    /// operands (element-wise over either) and by whole views.
    #[must_use]
    pub fn loadmaster() -> Self {
        let mut table = Self::ggml();
        for &op in Op::ALL {
            if !table.operands(op).is_none() {
                table = table.allow(op, Operands::FIRST);
            }
            if op.kind() == OpKind::Glu || ELEMENT_WISE.contains(&op) {
                table = table.allow(op, Operands::FIRST_TWO);
            }
        }
        table.through_views(ViewReuse::WholeRoot)
    }

    /// The table with an operation allowed over these operands (and no others).
    #[must_use]
    pub const fn allow(mut self, op: Op, operands: Operands) -> Self {
        self.operands[op as usize] = operands;
        self
    }

    /// The table with another rule for views.
    #[must_use]
    pub const fn through_views(mut self, views: ViewReuse) -> Self {
        self.views = views;
        self
    }

    /// What both tables allow.
    #[must_use]
    pub fn common(&self, other: &Self) -> Self {
        let views = if self.views == other.views { self.views } else { ViewReuse::Never };
        let both = |op: Op| Operands(self.operands(op).0 & other.operands(op).0);
        Op::ALL.iter().fold(Self::none().through_views(views), |table, &op| table.allow(op, both(op)))
    }

    /// The operands that an operation may write over.
    #[inline]
    #[must_use]
    pub const fn operands(&self, op: Op) -> Operands {
        self.operands[op as usize]
    }

    /// The rule for views.
    #[inline]
    #[must_use]
    pub const fn views(&self) -> ViewReuse {
        self.views
    }
}

impl Default for InPlaceTable {
    /// The reference's list, which every backend that runs ggml's kernels honours.
    fn default() -> Self {
        Self::ggml()
    }
}
