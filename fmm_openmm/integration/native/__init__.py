"""The native bridge to OpenMM's CUDA platform: the plugin, its requests, and the answers."""
