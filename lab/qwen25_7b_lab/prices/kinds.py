"""The kind of a device operation, which names its law, and the short names of formats and fidelities."""

import re

# The first match of an operation's name, in lower case without underscores and without "DeviceOperation".
KINDS = (
    (
        r"sparse|matmulrs|matmul\w*reducescatter|gather\w*matmul|gatherconcat|createheadsdevice|scattercreate|intimg|seed",
        "",
    ),
    (r"matmul|^linear", "matmul"),
    (r"^rmsallgather|preallgather|postallgather|distributed", ""),
    (r"norm", "norm"),
    (r"create\w*heads", "create_heads"),
    (r"concatheads", "concat_heads"),
    (r"rotary", "rotary"),
    (r"updatecache", "cache_update"),
    (r"fillcache", "cache_fill"),
    (r"(sdpa|dotproductattention).*decode", "sdpa_decode"),
    (r"^sdpa|dotproductattention", "sdpa_prefill"),
    (r"^topk", "topk"),
    (r"^argmax", "argmax"),
    (r"^sampling", "sampling"),
    (r"^(allgather|reducescatter|allreduce|alltoall)", "collective"),
    (r"^embedding", "embedding"),
    (r"interleavedtosharded|shardedtointerleaved|^reshard|^tomemoryconfig", "reshard"),
    (r"^(add|mul|sub|div|binary|logical|ge$|gt$|eq$|le$|lt$|ne$|where|ternary)", "binary"),
    (
        r"^(relu|silu|gelu|exp|recip|atan|gtz|ltz|eqz|typecast|unary|plusone|sigmoid|sqrt|rsqrt|neg|copy|clone|softmax)",
        "unary",
    ),
    (r"^(tilize|untilize)", "tilize"),
    (r"^(slice|split)", "slice"),
    (r"^(transpose|permute|concat|repeat)", "transpose"),
    (r"^reshape", "reshape"),
    (r"^(pad|fillpad)", "pad"),
)
PHASES = {"lofi": 1, "hifi2": 2, "hifi3": 3, "hifi4": 4}
DTYPES = {"bfloat16": "bf16", "bfloat8_b": "bfp8", "bfloat4_b": "bfp4", "float32": "fp32"}
AUTO_WIDTH = 2  # tiles of K in a block, where the library chooses: 41 of 50 rows that say it
LONG_RANGE = 4  # tile rows up to which a matmul counts as one that reads its weight


def kind_of(name: str) -> str:
    return next((kind for pattern, kind in KINDS if re.search(pattern, name)), "")


def name_of(op: str) -> str:
    return re.sub(r"(device)?operation$", "", op.lower().replace("_", "").replace("ttnn.", ""))
