"""The blocks of `golden_mesh.captured` that a program is in. Needs no ttnn."""

from collections import Counter

entered: list[str] = []  # names of the blocks around the running code, outermost first
times: Counter[str] = Counter()  # how often each block was entered
