"""The GPU backend: the kernels of ``kernels/`` through CuPy, captured in a CUDA graph.

Imported only when it is used.
"""
