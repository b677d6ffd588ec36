//! Element types, under ggml's names and numbers.

use crate::units::Bytes;
use std::fmt;

macro_rules! dtypes {
    ($($variant:ident = $name:literal, $number:literal, $block:literal, $size:literal;)*) => {
        /// An element type: plain, or quantized in blocks along the innermost dimension.
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
        #[repr(u8)]
        #[non_exhaustive]
        #[allow(missing_docs, non_camel_case_types)]
        pub enum DType { $($variant = $number,)* }

        impl DType {
            /// Every type, by number.
            pub const ALL: &'static [Self] = &[$(Self::$variant,)*];

            /// ggml's name.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self { $(Self::$variant => $name,)* }
            }
            /// The type of that name.
            #[must_use]
            pub fn from_name(name: &str) -> Option<Self> {
                match name { $($name => Some(Self::$variant),)* _ => None }
            }
            /// ggml's number, as in GGUF files.
            #[must_use]
            pub const fn number(self) -> u32 {
                self as u32
            }
            /// The type of that number.
            #[must_use]
            pub const fn from_number(number: u32) -> Option<Self> {
                match number { $($number => Some(Self::$variant),)* _ => None }
            }
            /// Elements in a block.
            #[inline]
            #[must_use]
            pub const fn block_len(self) -> u64 {
                match self { $(Self::$variant => $block,)* }
            }
            /// Bytes of a block.
            #[inline]
            #[must_use]
            pub const fn block_size(self) -> Bytes {
                match self { $(Self::$variant => Bytes($size),)* }
            }
        }
    };
}

dtypes! {
    F32 = "f32", 0, 1, 4;
    F16 = "f16", 1, 1, 2;
    Q4_0 = "q4_0", 2, 32, 18;
    Q4_1 = "q4_1", 3, 32, 20;
    Q5_0 = "q5_0", 6, 32, 22;
    Q5_1 = "q5_1", 7, 32, 24;
    Q8_0 = "q8_0", 8, 32, 34;
    Q8_1 = "q8_1", 9, 32, 36;
    Q2K = "q2_K", 10, 256, 84;
    Q3K = "q3_K", 11, 256, 110;
    Q4K = "q4_K", 12, 256, 144;
    Q5K = "q5_K", 13, 256, 176;
    Q6K = "q6_K", 14, 256, 210;
    Q8K = "q8_K", 15, 256, 292;
    Iq2Xxs = "iq2_xxs", 16, 256, 66;
    Iq2Xs = "iq2_xs", 17, 256, 74;
    Iq3Xxs = "iq3_xxs", 18, 256, 98;
    Iq1S = "iq1_s", 19, 256, 50;
    Iq4Nl = "iq4_nl", 20, 32, 18;
    Iq3S = "iq3_s", 21, 256, 110;
    Iq2S = "iq2_s", 22, 256, 82;
    Iq4Xs = "iq4_xs", 23, 256, 136;
    I8 = "i8", 24, 1, 1;
    I16 = "i16", 25, 1, 2;
    I32 = "i32", 26, 1, 4;
    I64 = "i64", 27, 1, 8;
    F64 = "f64", 28, 1, 8;
    Iq1M = "iq1_m", 29, 256, 56;
    Bf16 = "bf16", 30, 1, 2;
    Tq1_0 = "tq1_0", 34, 256, 54;
    Tq2_0 = "tq2_0", 35, 256, 66;
    Mxfp4 = "mxfp4", 39, 32, 17;
    Nvfp4 = "nvfp4", 40, 64, 36;
    Q1_0 = "q1_0", 41, 128, 18;
    Q2_0 = "q2_0", 42, 64, 18;
}

impl DType {
    /// Whether elements come in blocks with shared scales.
    #[must_use]
    pub const fn is_quantized(self) -> bool {
        self.block_len() > 1
    }

    /// Bytes of a row of `elements`; `None` if they do not fill whole blocks or the size overflows.
    #[must_use]
    pub fn row_size(self, elements: u64) -> Option<Bytes> {
        if !elements.is_multiple_of(self.block_len()) {
            return None;
        }
        self.block_size().checked_mul(elements / self.block_len())
    }
}

impl fmt::Display for DType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}
