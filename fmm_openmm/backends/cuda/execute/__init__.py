"""Executors of programs: a folder each, which imports no other."""
