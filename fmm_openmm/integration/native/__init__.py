"""The native bridge to OpenMM's CUDA platform: the plugin, what it asks, and the answers."""
