"""Checkpoints: `config` (config.json), `weights` (names, shapes, tensors), `inspect` (what a file holds)."""
