"""M2L operators of a level on the GPU, and a benchmark that compares them.

``p4``            ``m2l_p4.cu``            O(p^4), direct mapping of loops to threads
``p4_dynamic``    ``m2l_p4_dynamic.cu``    O(p^4), a block per parent, index work hoisted out of the
                                           loops
``p4_symmetric``  ``m2l_p4_symmetric.cu``  O(p^4), matrices shared by the mirror images of a
                                           translation
``p4_parity``     ``m2l_p4_parity.cu``     O(p^4), the same with sums over mirror images, shared by
                                           target terms of the same parity
``rotation``      ``m2l_rotation.cu``      the solver's own, ``backends/cuda/pipeline/m2l.py``
"""
