"""n-gram drafts of later plugins, verified by our verify step: their docs/SPEC_DECODE_CONTRACT.md.

The plugin finds the drafts and decides which of them stay. Each draft token takes one of a step's 32 slots.
"""

from typing import Any

import torch

from ..engine.input_batch import VerifyRow
from ..engine.replica import Replica
from ..plans.grids import ceil_div
from ..plans.parallel_plan import MAX_USERS
from ..text.request import MAX_SPECULATE


def speculation_plan(max_num_seqs: int, requested: int) -> Any:
    """Return the plugin's SpecPlan or SpecReject. requested: draft tokens of a sequence in a step."""
    from vllm_tt_plugin.spec_decode import SpecPlan, SpecReject

    most = min(MAX_SPECULATE, MAX_USERS // max_num_seqs) - 1
    if most < 1:
        return SpecReject(f"drafts need slots: start with --max-num-seqs {MAX_USERS // 2} or fewer")
    drafts = min(requested, most)
    return SpecPlan(
        effective_k=drafts,
        lanes_per_request=1 + drafts,
        extra_bytes_per_seq=0,
        extra_bytes_per_token=0,
        accept_modes=("argmax_ids",),
        drafter_state="internal",
        supports_narrow_decode=True,
    )


def verified_tokens(vllm_config: Any) -> int:
    """Return the tokens of a sequence in a verify step: 1 without speculation. vllm_config: vLLM's, or None."""
    speculative = getattr(vllm_config, "speculative_config", None)
    return 1 + speculative.num_speculative_tokens if speculative else 1


def verify(
    replica: Replica,
    sequences: int,
    tokens: torch.Tensor,
    start_pos: torch.Tensor,
    page_table: torch.Tensor,
    num_valid_drafts: torch.Tensor,
    spec_mode: str,
) -> Any:
    """Run a verify step; return the plugin's VerifyOutput: the greedy choice after each token, [sequences, 1 + drafts] int32.

    tokens, start_pos: [sequences, 1 + drafts], the last token of each and its drafts. num_valid_drafts: [sequences].
    The last tokens are in the sequences' slots, the drafts in the slots after all sequences.
    """
    from vllm_tt_plugin.spec_decode import VerifyOutput

    drafts, rows = tokens.shape[1] - 1, []
    for slot, (first, valid) in enumerate(zip(start_pos[:, 0].tolist(), num_valid_drafts.tolist())):
        if first >= 0:
            lent = sequences + slot * drafts
            blocks = page_table[slot, : ceil_div(first + 1 + valid, replica.block)].tolist()
            slots = slot, *range(lent, lent + valid)
            rows.append(VerifyRow(slots, tokens[slot].tolist(), first, blocks))
    replica.inputs.write_verify(rows)
    replica.inputs.write_sampling_params([])
    replica.launch_verify()
    sampled = torch.tensor(replica.read_tokens(), dtype=torch.int32)
    choices = torch.zeros(tokens.shape, dtype=torch.int32)
    for row in rows:
        choices[row.slots[0], : len(row.slots)] = sampled[list(row.slots)]
    return VerifyOutput(spec_mode, argmax_ids=choices)
