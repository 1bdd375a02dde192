"""Running every kind of step once before anybody waits for it: compiled first, captured then."""

from models.demos.qwen25_7b.config.sampling import GREEDY, Sampling
from models.demos.qwen25_7b.plans.blocks import NOWHERE, attention_tables
from models.demos.qwen25_7b.plans.grids import TILE
from models.demos.qwen25_7b.plans.prefill_plan import attention_chunk
from models.demos.qwen25_7b.serving.passes import Pass, Piece, Prompt, pass_sizes
from models.demos.qwen25_7b.serving.replica import Replica

PENALISED = Sampling(repetition_penalty=1.05)


def warm_up_passes(replica: Replica, *, traced: bool, scratch: int = 0) -> None:
    """Every kind of pass that plan_passes can ask for. Block `scratch` is written, whose contents nobody wants."""
    longest = replica.model.longest_pass
    for rows in pass_sizes(longest):
        for continued in (False, True):
            for answered in (True, False) if rows == longest else (True,):
                work = _pass(replica, rows, continued, answered, scratch)
                if work is not None:
                    replica.prefill(work, traced=traced)
                    if answered:
                        replica.read()
    replica.place_sampling([PENALISED])  # what a pass does then comes after it, whatever its rows
    replica.prefill(_pass(replica, TILE, False, True, scratch), traced=traced)
    replica.read()
    replica.place_sampling([])


def warm_up_decode(replica: Replica, *, traced: bool) -> None:
    """A step of idle rows of each kind, which writes nothing."""
    nothing = attention_tables([[]] * replica.batch, replica.width)
    replica.place([0] * replica.batch, [NOWHERE] * replica.batch, nothing)
    for sampling in (PENALISED, Sampling(temperature=1.0), GREEDY):
        replica.place_sampling([sampling])
        replica.launch(traced=traced)
        replica.read()


def _pass(replica: Replica, rows: int, continued: bool, answered: bool, scratch: int) -> Pass | None:
    """One of that kind, with one token; None if no text is long enough for it."""
    first = max(replica.block, attention_chunk(rows)) if continued else 0  # the earliest that `begin` can give
    if first >= replica.model.max_seq_len:
        return None
    # A pass that answers nobody is one whose prompt goes on behind it.
    tokens = [0] * (first + 1 if answered else first + 2)
    prompt = Prompt(0, tokens, first, [scratch] * replica.width)
    return Pass(rows, (Piece(prompt, first, first, first + 1),), continued)
