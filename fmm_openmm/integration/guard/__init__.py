"""Wrappers around methods of OpenMM: they refuse a System that was edited after its conversion, and
hold signals back while forces are evaluated."""
