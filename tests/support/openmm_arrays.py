"""Arrays of a program as OpenMM has them."""

import numpy as np


def between_openmm(stages, positions) -> np.ndarray:
    """Positions (n, 3) where OpenMM has them, in another order, which is returned;
    no forces yet."""
    index = np.random.default_rng(8).permutation(len(positions))
    arrays = stages.buffers
    for name in ("posq", "posq_correction", "force_buffer"):
        arrays[name][...] = 0
    arrays["atom_index"][: len(index)] = index
    arrays["posq"][: len(index), :3] = positions[index]
    arrays["posq_correction"][: len(index), :3] = (
        positions[index] - arrays["posq"][: len(index), :3]
    )
    return index
