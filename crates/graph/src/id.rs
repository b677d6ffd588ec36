//! Dense typed ids and the maps keyed by them.
//!
//! An id is a 32-bit index that prints with a prefix (`t17`, `dev0`, `split3`). `Option<Id>` is as small as the id.

use std::fmt;
use std::marker::PhantomData;
use std::num::NonZeroU32;
use std::ops::{Index, IndexMut};

/// A dense index with a type of its own.
pub trait Id: Copy + Eq + Ord + std::hash::Hash + fmt::Debug {
    /// The id for `index`. Panics above 2³² − 2: callers cap counts long before (see [`crate::limits`]).
    fn from_index(index: usize) -> Self;
    /// The index behind the id.
    fn index(self) -> usize;
}

/// Declares id types: `define_id! { /// docs \n pub TensorId, "t"; … }`.
#[macro_export]
macro_rules! define_id {
    ($($(#[$meta:meta])* pub $name:ident, $prefix:literal;)*) => {$(
        $(#[$meta])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name($crate::id::RawId);

        impl $crate::id::Id for $name {
            #[inline]
            fn from_index(index: usize) -> Self {
                Self($crate::id::RawId::new(index))
            }
            #[inline]
            fn index(self) -> usize {
                self.0.index()
            }
        }

        impl $name {
            /// The id for `index`.
            #[inline]
            #[must_use]
            pub fn new(index: usize) -> Self {
                <Self as $crate::id::Id>::from_index(index)
            }
            /// The index behind the id.
            #[inline]
            #[must_use]
            pub fn index(self) -> usize {
                self.0.index()
            }
        }

        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                write!(f, concat!($prefix, "{}"), self.index())
            }
        }

        impl std::fmt::Debug for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                std::fmt::Display::fmt(self, f)
            }
        }
    )*};
}

/// The storage of every id: the index plus one, so that `Option` costs nothing.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RawId(NonZeroU32);

impl RawId {
    /// Packs an index.
    #[inline]
    #[must_use]
    pub fn new(index: usize) -> Self {
        let raw = u32::try_from(index).ok().and_then(|i| i.checked_add(1)).and_then(NonZeroU32::new);
        // Counts are capped far below 2³² wherever input enters; reaching this is our own bug.
        #[allow(clippy::expect_used)]
        Self(raw.expect("id index out of range"))
    }

    /// Unpacks the index.
    #[inline]
    #[must_use]
    pub fn index(self) -> usize {
        (self.0.get() - 1) as usize
    }
}

define_id! {
    /// A tensor of a graph: index into `Graph::tensors`.
    pub TensorId, "t";
    /// A position in `Graph::nodes` (execution order).
    pub NodeId, "n";
    /// A position in `Graph::leafs`.
    pub LeafId, "leaf";
    /// A device of a machine; 0 is the highest priority.
    pub DeviceId, "dev";
    /// A memory pool of a machine.
    pub PoolId, "pool";
    /// A buffer type of a machine.
    pub BufferTypeId, "bt";
    /// An existing buffer (weights, KV cache) that a graph refers to.
    pub BufferId, "buf";
    /// A split of a plan.
    pub SplitId, "split";
    /// A copy of a split input for a device.
    pub CopyId, "copy";
}

/// A vector indexed by a typed id.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct IdVec<K, V> {
    items: Vec<V>,
    key: PhantomData<fn(K) -> K>,
}

impl<K: Id, V> IdVec<K, V> {
    /// An empty map.
    #[must_use]
    pub fn new() -> Self {
        Self { items: Vec::new(), key: PhantomData }
    }
    /// Wraps a vector: its i-th item belongs to the i-th id.
    #[must_use]
    pub fn from_vec(items: Vec<V>) -> Self {
        Self { items, key: PhantomData }
    }
    /// `len` clones of `value`.
    #[must_use]
    pub fn filled(value: V, len: usize) -> Self
    where
        V: Clone,
    {
        Self::from_vec(vec![value; len])
    }
    /// Appends and returns the new id.
    pub fn push(&mut self, value: V) -> K {
        let id = K::from_index(self.items.len());
        self.items.push(value);
        id
    }
    /// The number of items.
    #[inline]
    #[must_use]
    pub fn len(&self) -> usize {
        self.items.len()
    }
    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.items.is_empty()
    }
    /// The item, if the id is in range.
    #[must_use]
    pub fn get(&self, id: K) -> Option<&V> {
        self.items.get(id.index())
    }
    /// The items in id order.
    pub fn values(&self) -> std::slice::Iter<'_, V> {
        self.items.iter()
    }
    /// The items in id order, mutable.
    pub fn values_mut(&mut self) -> std::slice::IterMut<'_, V> {
        self.items.iter_mut()
    }
    /// The items in id order, taken out.
    pub fn into_values(self) -> std::vec::IntoIter<V> {
        self.items.into_iter()
    }
    /// All ids.
    pub fn ids(&self) -> impl ExactSizeIterator<Item = K> + use<K, V> {
        (0..self.items.len()).map(K::from_index)
    }
    /// Ids with items.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = (K, &V)> {
        self.items.iter().enumerate().map(|(i, v)| (K::from_index(i), v))
    }
    /// The items as a slice.
    #[must_use]
    pub fn as_slice(&self) -> &[V] {
        &self.items
    }
}

impl<K: Id, V> Default for IdVec<K, V> {
    fn default() -> Self {
        Self::new()
    }
}

impl<K: Id, V: fmt::Debug> fmt::Debug for IdVec<K, V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map().entries(self.iter()).finish()
    }
}

impl<K: Id, V> Index<K> for IdVec<K, V> {
    type Output = V;
    #[inline]
    fn index(&self, id: K) -> &V {
        &self.items[id.index()]
    }
}

impl<K: Id, V> IndexMut<K> for IdVec<K, V> {
    #[inline]
    fn index_mut(&mut self, id: K) -> &mut V {
        &mut self.items[id.index()]
    }
}

impl<K: Id, V> FromIterator<V> for IdVec<K, V> {
    fn from_iter<I: IntoIterator<Item = V>>(iter: I) -> Self {
        Self::from_vec(iter.into_iter().collect())
    }
}
