"""The conversion of a System from PME or NoCutoff to an FMM, and back."""
