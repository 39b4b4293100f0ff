"""Which boxes and parameters serve a system, chosen for a tolerance."""
