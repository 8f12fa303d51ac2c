//! What processors do many at a time, by the levels of instructions that they have.

pub mod classify;
