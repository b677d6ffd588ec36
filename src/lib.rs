//! loadmaster: library side of the command.
