"""How many traces a mesh's trace region holds. Pure functions."""

# Bytes of a chip's trace region for a device operation of a trace. An upper bound, not measured here: tt-metal gives
# Llama-3.1-8B 25, 38 and 50 MB on N150, N300 and T3K (models/tt_transformers, trace_region_size). Those hold a decode trace
# and 4, 7 and 7 prefill traces of about 750 operations each: 5,900 to 7,700 bytes an operation.
BYTES_PER_OPERATION = 8_000


def trace_bytes(operations: int) -> int:
    """Bytes of a trace of `operations` device operations, at most."""
    return BYTES_PER_OPERATION * operations


def traces_that_fit(region_bytes: int, operations: int) -> int:
    """Traces of up to `operations` device operations that fit a chip's trace region."""
    return region_bytes // trace_bytes(operations)
