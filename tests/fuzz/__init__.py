"""Fuzzing: one target for each reader of bytes that others wrote, with a corpus and one command, ``python -m tests.fuzz``."""
