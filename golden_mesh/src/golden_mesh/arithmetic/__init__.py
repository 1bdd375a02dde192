"""A Wormhole chip's arithmetic, in torch: the matrix engine, the vector unit and the packer.

- kernel.py: the part of a compute kernel config that changes numbers.
- engine.py: the matrix engine: sums and products of elements, sums of rows.
- product.py: the matrix engine: matrix products.
- parts.py: large tensors a part at a time.
- aligned.py: the matrix engine: its sums, in groups of eight products.
- vector.py: the vector unit: exp, sigmoid and silu.
- packer.py: from the engine's registers to a tensor's format.
- flash.py: the steps of flash attention.
- decode_schedule.py: how decode attention divides its chunks of keys among cores.

Sources:

- Tenstorrent's ISA documentation (github.com/tenstorrent/tt-isa-documentation, WormholeB0/TensixTile).
- The source of the bit-exact simulator (github.com/tenstorrent/ttsim).
- The kernels inside the ttnn wheel.

tests/vectors holds the results of such a chip. These results decide what is right.

The engine multiplies the contents of its registers SrcA and SrcB and adds the product to its register Dest
("dest"). A matrix product takes its first operand through SrcB and its second through SrcA.
"""
