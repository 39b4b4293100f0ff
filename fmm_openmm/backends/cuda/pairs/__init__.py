"""Programs of pair interactions beside the FMM."""
