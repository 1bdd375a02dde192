"""A Wormhole chip's arithmetic, in torch: what its matrix engine, vector unit and packer make of numbers.

    kernel.py   the part of a compute kernel config that changes numbers
    engine.py   the matrix engine: sums and products of elements, sums of rows
    product.py  the matrix engine: matrix products
    vector.py   the vector unit: exp, in its exact and its approximate form
    packer.py   from the engine's registers to a tensor's format

Sources: Tenstorrent's ISA documentation (github.com/tenstorrent/tt-isa-documentation, WormholeB0/TensixTile), the
source of the bit-exact simulator (github.com/tenstorrent/ttsim) and the kernels inside the ttnn wheel.
tests/golden_mesh/vectors holds what such a chip computed, which is the judge.

Names: the engine multiplies what its registers SrcA and SrcB hold and adds it to its register Dest ("dest"). A matrix
product takes its first operand through SrcB, its second through SrcA.
"""
