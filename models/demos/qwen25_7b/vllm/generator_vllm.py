"""QwenForCausalLM: the model class that Tenstorrent's vLLM plugin calls. tt-metal: models/*/tt/generator_vllm.py.

It computes vLLM's steps on a Replica. At the start, startup.py refuses options that cannot be served. No request raises
in a step, because an exception there ends the engine for every request.
"""

from typing import Any, Iterable, Optional, Sequence

import torch
import ttnn

from ..config import DecoderConfig
from ..engine.prefill_batch import Prompt
from ..engine.replica import Replica
from ..engine.sampling import NextToken, TokenCounts, log_prob, sample_tokens
from ..engine.trace import PendingRead, trace_region
from ..errors import check_integer
from ..plans.blocks import whole_chunks
from ..plans.grids import ceil_div
from ..plans.memory_budget import memory_budget
from ..plans.parallel_plan import MAX_USERS
from ..tt.attention import TtKVCache, allocate_caches
from ..tt.mesh import traces_available
from ..tt.model_config import TtModelConfig
from ..tt.placement import check_fits, free_dram
from ..tt.transformer import TtTransformer
from ..weights.cache import open_checkpoint, packed_weights
from . import startup
from .inputs import DecodeState, own_tokens, token_counts, tokens_to_sample

# token ids [slots]; with their log-probabilities [slots]
Sampled = torch.Tensor | tuple[torch.Tensor, torch.Tensor]


class QwenForCausalLM:
    """The plugin constructs it, allocates its caches, runs the warm-up, then runs steps.

    Arguments have the plugin's names; others are ignored. The plugin decides which sequence is in which slot, which
    blocks it has, and where tokens are sampled. A slot without a sequence has start_pos -1. The only state by slot is
    that of the chips between two decode steps (DecodeState).
    """

    model_capabilities = {f"supports_{name}": True for name in ("prefix_caching", "async_decode", "sample_on_device")}
    _cache_tokens: int  # of the newest model

    def __init__(self, model: TtTransformer, sequences: int):
        """sequences: rows of the plugin's decode calls; the model may have more slots, see DecodeLayout.make."""
        self.model = model
        self.sequences = sequences
        self._vocab_size = model.model_config.dims.vocab_size
        self.replica: Optional[Replica] = None  # until the caches are allocated
        # By row of a prefill, the plugin's own; MeshWorker sets it. A preempted sequence's prompt contains its answer.
        self.prompt_lengths: Sequence[int] = ()

    # ---- the start

    @classmethod
    def initialize_vllm_model(
        cls,
        hf_config: Any,
        mesh_device: ttnn.MeshDevice,
        max_batch_size: int,
        max_seq_len: int,
        *,
        optimizations: Optional[str] = None,
        **_: Any,
    ) -> "QwenForCausalLM":
        """Load the weights onto the chips, through the user's cache. hf_config._name_or_path: vLLM's --model."""
        startup.check_mesh(mesh_device)
        check_integer("--max-num-seqs", max_batch_size, 1, MAX_USERS)
        config = DecoderConfig.from_dict(hf_config.to_dict(), source=f"{hf_config._name_or_path}")
        recipe, sizes = startup.OPTIMIZATIONS[optimizations], dict(min_slots=max_batch_size, max_seq_len=max_seq_len)
        model_config = TtModelConfig.make(mesh_device, config, recipe, **sizes)
        cls._cache_tokens = startup.full_cache_tokens(model_config, max_seq_len, max_batch_size)
        revision = None
        if vllm_config := startup.current_vllm_config():
            startup.check_number_formats(vllm_config)
            revision, cache = vllm_config.model_config.revision, vllm_config.cache_config
            # as the plugin will
            blocks = cache.num_gpu_blocks_override or ceil_div(cls._cache_tokens, cache.block_size) + max_batch_size
            budget = memory_budget(model_config, max_seq_len)
            check_fits(mesh_device, budget)
            startup.check_cache(model_config, free_dram(mesh_device) - budget.total, blocks, cache.block_size)
        checkpoint = open_checkpoint(hf_config._name_or_path, revision=revision)
        return cls(TtTransformer(mesh_device, packed_weights(checkpoint, model_config), model_config), max_batch_size)

    @classmethod
    def get_max_tokens_all_users(cls, **_: Any) -> int:
        """Tokens of the cache of the newest model. The plugin adds a block for each sequence."""
        return cls._cache_tokens

    def allocate_kv_cache(
        self, kv_cache_shape: Sequence[int], dtype: torch.dtype, num_layers: int, **_: Any
    ) -> list[TtKVCache]:
        """Allocate the caches of all layers. The recipe decides their number format; dtype does not.

        kv_cache_shape: (blocks, KV heads of a chip, tokens of a block, head_dim). A sequence's table names whole chunks
        of keys, and the cache update wants no fewer blocks than that: what is missing is added.
        """
        model, (blocks, _, block, _) = self.model, kv_cache_shape
        device = model.mesh_device
        startup.check_cache(model.model_config, free_dram(device), blocks, block)
        blocks = whole_chunks(blocks, model.model_config.max_seq_len, block)
        caches = allocate_caches(device, model.model_config, blocks, block)
        self._can_trace = traces_available() and trace_region(device) > 0
        self.replica = Replica(model, caches, traced=self._can_trace)
        self._state = DecodeState(self.replica)
        return caches

    def warmup_model_prefill(self, *, enable_trace: bool, **_: Any) -> None:
        """Run every kind of prefill. The plugin calls it without traces first: nothing compiles beside a trace."""
        self.replica.traces.enabled = enable_trace and self._can_trace
        startup.warm_up_prefill(self.replica)

    def warmup_model_decode(self, *, enable_trace: bool, **_: Any) -> None:
        self.replica.traces.enabled = enable_trace and self._can_trace
        startup.warm_up_decode(self.replica)

    # ---- steps

    def prefill_forward(
        self,
        *,
        tokens: torch.Tensor,
        page_table: torch.Tensor,
        prompt_lens: Sequence[int],
        start_pos: Sequence[int],
        enable_trace: bool = False,
        sampling_params: Any = None,
        **_: Any,
    ) -> Sampled:
        """Compute tokens[i, start_pos[i] : prompt_lens[i]] of each row i; the cache holds the tokens before.

        Returns logits [rows, 1, vocab_size] float32, or, with sampling_params, the sampled tokens.
        """
        self._state.invalidate()
        self.replica.traces.enabled = enable_trace and self._can_trace
        rows, block, own = len(prompt_lens), self.replica.block, own_tokens(tokens, prompt_lens)
        prompts = [
            Prompt(row, ids.tolist(), int(start_pos[row]), page_table[row, : ceil_div(len(ids), block)].tolist())
            for row, ids in enumerate(own)
        ]
        if sampling_params is None:
            return self.replica.prefill_logits(prompts)[:, None]
        next_tokens = tokens_to_sample(sampling_params, list(map(len, own)), self._vocab_size)
        counts = [TokenCounts(ids[:length], ids[length:]) for ids, length in zip(own, self.prompt_lengths)]
        next_tokens = [t._replace(counts=counts[t.slot]) for t in next_tokens]
        mode = self.replica.inputs.write_sampling(next_tokens, new_counts=True)
        ids, log_probs = torch.zeros(rows, dtype=torch.int32), torch.zeros(rows)
        for batch in self.replica.batches(prompts):
            self.replica.prefill(batch, mode)
            if sampled := batch.sampled_slots:
                self._read_sampled([next_tokens[row] for row in sampled], ids, log_probs)
        return _with_log_probs(next_tokens, ids, log_probs)

    def decode_forward(
        self,
        *,
        tokens: torch.Tensor,
        page_table: torch.Tensor,
        start_pos: torch.Tensor,
        enable_trace: bool = False,
        sampling_params: Any = None,
        reset_batch: bool = True,
        prompt_tokens: Optional[torch.Tensor] = None,
        output_tokens: Optional[torch.Tensor] = None,
        **_: Any,
    ) -> Any:
        """Compute one token of each slot.

        Returns logits [slots, 1, vocab_size] float32, or, with sampling_params, the sampled tokens; a PendingRead if
        the chips sampled all of them. reset_batch: sequences have changed slots. It may be False after steps that left
        no tokens on the chips. Sampling parameters are written whenever they differ from the last ones.
        """
        self.replica.traces.enabled = enable_trace and self._can_trace
        on_host = sampling_params is None
        positions = self._state.write(tokens, start_pos, page_table, reset_batch or on_host)
        if on_host:
            self.replica.launch_decode()
            self.replica.read_tokens()
            self._state.invalidate()
            return self.replica.read_logits()[: self.sequences].float()[:, None]
        next_tokens = tokens_to_sample(sampling_params, [position + 1 for position in positions], self._vocab_size)
        new_counts = self._state.from_host
        # Between two changes of the batch the chips count, so a step's work does not grow with the sequences.
        if new_counts or any(_on_host(t) and t.params.penalized for t in next_tokens):
            counts = token_counts(prompt_tokens, output_tokens, self.sequences)
            next_tokens = [t._replace(counts=counts[t.slot]) for t in next_tokens]
        self.replica.launch_decode(self.replica.inputs.write_sampling(next_tokens, new_counts=new_counts))
        if not any(_on_host(t) or t.log_prob for t in next_tokens):
            return self.replica.pop_pending()
        ids, log_probs = torch.zeros(self.sequences, dtype=torch.int32), torch.zeros(self.sequences)
        self._read_sampled(next_tokens, ids, log_probs)
        if any(map(_on_host, next_tokens)):
            self._state.tokens = ids.tolist()
        return _with_log_probs(next_tokens, ids, log_probs)

    def read_decode_output(self, tt_out: Any, **_: Any) -> tuple[Any, list]:
        """Return what decode_forward returned, and the events to wait for."""
        done = getattr(tt_out, "done", None)
        return tt_out, [] if done is None else [done]

    def process_decode_output_host(self, tt_out: PendingRead, **_: Any) -> torch.Tensor:
        """Wait for tt_out; return its token ids [slots]. The plugin may call this from another thread."""
        return torch.tensor(tt_out.token_ids()[: self.sequences], dtype=torch.int32)

    def close(self) -> None:
        """Release the traces, which must not outlive the mesh."""
        if self.replica is not None:
            self.replica.close()

    # ---- sampling

    def _read_sampled(self, next_tokens: Sequence[NextToken], ids: torch.Tensor, log_probs: torch.Tensor) -> None:
        """Wait for the newest launch; write the tokens and log-probabilities at their slots."""
        tokens = self.replica.read_tokens()
        logits = self.replica.read_logits() if any(_on_host(t) or t.log_prob for t in next_tokens) else None
        if on_host := list(filter(_on_host, next_tokens)):
            for t, token in zip(on_host, sample_tokens(logits, on_host)):
                tokens[t.slot] = token
        for t in next_tokens:
            ids[t.slot] = tokens[t.slot]
            if t.log_prob:
                log_probs[t.slot] = log_prob(logits[t.slot], tokens[t.slot])


def _on_host(next_token: NextToken) -> bool:
    return not next_token.params.on_device


def _with_log_probs(next_tokens: Iterable[NextToken], ids: torch.Tensor, log_probs: torch.Tensor) -> Sampled:
    return (ids, log_probs) if any(t.log_prob for t in next_tokens) else ids
