"""Wrappers around methods of OpenMM that refuse a System edited after its conversion and defer
signals while forces are evaluated."""
