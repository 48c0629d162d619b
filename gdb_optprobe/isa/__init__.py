"""Instruction sets, each behind the `Isa` of record.py."""
