"""Targets: what a machine can do, its layouts and schedules, and its code generation."""
