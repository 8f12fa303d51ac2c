//! Memory for tables that are read at random, and values that are made when they are first asked for.

pub mod lazy;
pub mod table;
