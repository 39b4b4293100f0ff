"""Cells of regular shapes."""

import numpy as np

DODECAHEDRON = np.array([[1, 0, 0], [0, 1, 0], [0.5, 0.5, np.sqrt(0.5)]])


OCTAHEDRON = np.array(
    [[1, 0, 0], [1 / 3, np.sqrt(8) / 3, 0], [-1 / 3, np.sqrt(2) / 3, np.sqrt(6) / 3]]
)
