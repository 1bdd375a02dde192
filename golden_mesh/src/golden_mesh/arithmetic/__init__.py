"""A Wormhole chip's arithmetic, in torch: the matrix engine (engine, product, aligned, bfloat16_dest), the vector unit
(vector, approximations, powers, remainders), infinity and NaN (special), the packer, and flash attention's steps.

Sources:

- Tenstorrent's ISA documentation (github.com/tenstorrent/tt-isa-documentation, WormholeB0/TensixTile).
- The source of the bit-exact simulator (github.com/tenstorrent/ttsim).
- The kernels inside the ttnn wheel.

tests/vectors holds the results of such a chip. These results decide what is right.

The engine multiplies the contents of its registers SrcA and SrcB and adds the product to its register Dest
("dest"). A matrix product takes its first operand through SrcB and its second through SrcA.
"""
