"""Programs of pair interactions other than the Coulomb interaction."""
