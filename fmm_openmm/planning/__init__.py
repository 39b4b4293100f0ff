"""Choice of boxes and parameters for a system and a tolerance."""
