//! The operations of a graph, under ggml's names.

use std::fmt;

/// What kind of operation an [`Op`] is.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub enum OpKind {
    /// An operation of its own.
    Plain,
    /// Element-wise on one source (ggml's `UNARY` family).
    Unary,
    /// A gated linear unit (ggml's `GLU` family).
    Glu,
}

macro_rules! ops {
    ($($kind:ident { $($variant:ident = $name:literal,)* })*) => {
        /// An operation. Unary and GLU operations stand under their own names, as ggml prints them.
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
        #[repr(u8)]
        #[non_exhaustive]
        #[allow(missing_docs)]
        pub enum Op { $($($variant,)*)* }

        impl Op {
            /// Every operation, in table order.
            pub const ALL: &'static [Self] = &[$($(Self::$variant,)*)*];

            /// ggml's name.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self { $($(Self::$variant => $name,)*)* }
            }

            /// The operation of that name.
            #[must_use]
            pub fn from_name(name: &str) -> Option<Self> {
                match name { $($($name => Some(Self::$variant),)*)* _ => None }
            }

            /// The family it belongs to.
            #[must_use]
            pub const fn kind(self) -> OpKind {
                match self { $($(Self::$variant)|* => OpKind::$kind,)* }
            }
        }
    };
}

ops! {
    Plain {
        None = "NONE",
        Dup = "DUP",
        Add = "ADD",
        AddId = "ADD_ID",
        Add1 = "ADD1",
        Acc = "ACC",
        Sub = "SUB",
        Mul = "MUL",
        Div = "DIV",
        Sqr = "SQR",
        Sqrt = "SQRT",
        Log = "LOG",
        Sin = "SIN",
        Cos = "COS",
        Sum = "SUM",
        SumRows = "SUM_ROWS",
        Cumsum = "CUMSUM",
        Mean = "MEAN",
        Argmax = "ARGMAX",
        CountEqual = "COUNT_EQUAL",
        Repeat = "REPEAT",
        RepeatBack = "REPEAT_BACK",
        Concat = "CONCAT",
        SiluBack = "SILU_BACK",
        Norm = "NORM",
        RmsNorm = "RMS_NORM",
        RmsNormBack = "RMS_NORM_BACK",
        GroupNorm = "GROUP_NORM",
        L2Norm = "L2_NORM",
        MulMat = "MUL_MAT",
        MulMatId = "MUL_MAT_ID",
        OutProd = "OUT_PROD",
        Scale = "SCALE",
        Set = "SET",
        Cpy = "CPY",
        Cont = "CONT",
        Reshape = "RESHAPE",
        View = "VIEW",
        Permute = "PERMUTE",
        Transpose = "TRANSPOSE",
        GetRows = "GET_ROWS",
        GetRowsBack = "GET_ROWS_BACK",
        SetRows = "SET_ROWS",
        Diag = "DIAG",
        DiagMaskInf = "DIAG_MASK_INF",
        DiagMaskZero = "DIAG_MASK_ZERO",
        SoftMax = "SOFT_MAX",
        SoftMaxBack = "SOFT_MAX_BACK",
        Rope = "ROPE",
        RopeBack = "ROPE_BACK",
        Clamp = "CLAMP",
        ConvTranspose1d = "CONV_TRANSPOSE_1D",
        Im2Col = "IM2COL",
        Im2ColBack = "IM2COL_BACK",
        Im2Col3d = "IM2COL_3D",
        Col2Im1d = "COL2IM_1D",
        Conv2d = "CONV_2D",
        Conv3d = "CONV_3D",
        Conv2dDw = "CONV_2D_DW",
        ConvTranspose2d = "CONV_TRANSPOSE_2D",
        Pool1d = "POOL_1D",
        Pool2d = "POOL_2D",
        Pool2dBack = "POOL_2D_BACK",
        Upscale = "UPSCALE",
        Pad = "PAD",
        PadReflect1d = "PAD_REFLECT_1D",
        Roll = "ROLL",
        Arange = "ARANGE",
        TimestepEmbedding = "TIMESTEP_EMBEDDING",
        Argsort = "ARGSORT",
        TopK = "TOP_K",
        LeakyRelu = "LEAKY_RELU",
        Tri = "TRI",
        Fill = "FILL",
        FlashAttnExt = "FLASH_ATTN_EXT",
        FlashAttnBack = "FLASH_ATTN_BACK",
        SsmConv = "SSM_CONV",
        SsmScan = "SSM_SCAN",
        WinPart = "WIN_PART",
        WinUnpart = "WIN_UNPART",
        GetRelPos = "GET_REL_POS",
        AddRelPos = "ADD_REL_POS",
        RwkvWkv6 = "RWKV_WKV6",
        GatedLinearAttn = "GATED_LINEAR_ATTN",
        RwkvWkv7 = "RWKV_WKV7",
        SolveTri = "SOLVE_TRI",
        GatedDeltaNet = "GATED_DELTA_NET",
        LightningIndexer = "LIGHTNING_INDEXER",
        Dsv4HcComb = "DSV4_HC_COMB",
        Dsv4HcPre = "DSV4_HC_PRE",
        Dsv4HcPost = "DSV4_HC_POST",
        MapCustom1 = "MAP_CUSTOM1",
        MapCustom2 = "MAP_CUSTOM2",
        MapCustom3 = "MAP_CUSTOM3",
        Custom = "CUSTOM",
        CrossEntropyLoss = "CROSS_ENTROPY_LOSS",
        CrossEntropyLossBack = "CROSS_ENTROPY_LOSS_BACK",
        OptStepAdamw = "OPT_STEP_ADAMW",
        OptStepSgd = "OPT_STEP_SGD",
    }
    Unary {
        Abs = "ABS",
        Sgn = "SGN",
        Neg = "NEG",
        Step = "STEP",
        Tanh = "TANH",
        Elu = "ELU",
        Relu = "RELU",
        Sigmoid = "SIGMOID",
        Gelu = "GELU",
        GeluQuick = "GELU_QUICK",
        Silu = "SILU",
        Hardswish = "HARDSWISH",
        Hardsigmoid = "HARDSIGMOID",
        Exp = "EXP",
        Expm1 = "EXPM1",
        Softplus = "SOFTPLUS",
        GeluErf = "GELU_ERF",
        Xielu = "XIELU",
        Floor = "FLOOR",
        Ceil = "CEIL",
        Round = "ROUND",
        Trunc = "TRUNC",
    }
    Glu {
        Reglu = "REGLU",
        Geglu = "GEGLU",
        Swiglu = "SWIGLU",
        SwigluOai = "SWIGLU_OAI",
        GegluErf = "GEGLU_ERF",
        GegluQuick = "GEGLU_QUICK",
        SwigluClamp = "SWIGLU_CLAMP",
    }
}

impl Op {
    /// Its number among the operations of its family (ggml's `unary_op` and `glu_op` numbers).
    #[must_use]
    pub fn number_in_family(self) -> u32 {
        // Families are contiguous in the table, in ggml's order.
        Self::ALL[..self as usize].iter().filter(|op| op.kind() == self.kind()).count() as u32
    }

    /// VIEW, RESHAPE, PERMUTE, TRANSPOSE: no bytes of their own, nothing to compute.
    #[inline]
    #[must_use]
    pub const fn is_view(self) -> bool {
        matches!(self, Self::View | Self::Reshape | Self::Permute | Self::Transpose)
    }
}

impl fmt::Display for Op {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}
