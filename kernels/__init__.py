"""CUDA C++ kernels of the GPU backend: one file a stage, shared device code in ``common/``."""
