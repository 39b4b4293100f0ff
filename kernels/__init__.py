"""CUDA C++ kernels of the GPU backend: one file per stage, with shared device code in ``common/``.

Setup kernels are in ``setup/``, Lennard-Jones pairs in ``pairs/``, studies of the literature in
``literature/``.
"""
