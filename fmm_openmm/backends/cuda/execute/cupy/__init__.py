"""Programs through CuPy."""
