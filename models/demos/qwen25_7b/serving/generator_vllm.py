"""QwenForCausalLM: what Tenstorrent's vLLM plugin asks of a model, over Replica. tt-metal: models/*/tt/generator_vllm.py.

vLLM schedules, deals out the caches' blocks and speaks HTTP; this computes its steps. What cannot be served is refused at
the start (vllm_start.py); nothing that a request can ask for raises in a step, which would end the engine for everybody.
README, "Serving with vLLM", has the commands.
"""

from typing import Any, Iterator, NamedTuple, Optional, Sequence

import torch
import ttnn

from models.demos.qwen25_7b.config import MAX_USERS, ParallelPlan, QwenConfig, Recipe
from models.demos.qwen25_7b.config.sampling import CANDIDATES, GREEDY, Seen
from models.demos.qwen25_7b.loading.load import load_model
from models.demos.qwen25_7b.loading.opened import open_checkpoint
from models.demos.qwen25_7b.plans.blocks import BLOCKS
from models.demos.qwen25_7b.plans.grids import ceil_div
from models.demos.qwen25_7b.plans.memory_budget import cache_tokens
from models.demos.qwen25_7b.serving.noise import gumbel
from models.demos.qwen25_7b.serving.passes import Prompt, plan_passes
from models.demos.qwen25_7b.serving.replica import Replica, token_ids
from models.demos.qwen25_7b.serving.sampling import choose
from models.demos.qwen25_7b.serving.trace import PendingRead
from models.demos.qwen25_7b.serving.vllm_rows import DecodeRows
from models.demos.qwen25_7b.serving.vllm_sampling import Answers, Wish, seen_rows, wishes
from models.demos.qwen25_7b.serving.vllm_start import can_trace, capturing, check_caches, check_start, recipe_of
from models.demos.qwen25_7b.serving.warm_up import warm_up_decode, warm_up_passes
from models.demos.qwen25_7b.tt.kv_cache import TtKVCache, allocate_caches
from models.demos.qwen25_7b.tt.transformer import TtTransformer

Chosen = torch.Tensor | tuple[torch.Tensor, torch.Tensor]  # token ids [rows]; with their log-probabilities [rows]


class Draw(NamedTuple):
    """A token to be chosen."""

    row: int
    wish: Wish
    seen: Seen
    position: int  # where in its text it will stand


class QwenForCausalLM:
    """The plugin makes it, then its caches, then runs a warm-up, then steps; arguments are named as the plugin names them.

    Everything else about a step is in the plugin's hands: which rows, which blocks, who chooses. Rows without a sequence
    have start_pos -1. Nothing is kept by row but what the chips hold between two decode steps (DecodeRows).
    """

    model_capabilities = {
        "supports_prefix_caching": True,
        "supports_async_decode": True,
        "supports_sample_on_device": True,
    }
    _recipe: Recipe = recipe_of(None)  # of the newest model: get_max_tokens_all_users is not told

    def __init__(self, model: TtTransformer):
        self.model, self.batch = model, model.decode.batch
        self._answers = Answers()
        self._placed = [GREEDY] * self.batch  # how the chips choose

    # ---- the start

    @classmethod
    def initialize_vllm_model(
        cls,
        hf_config: Any,
        mesh_device: ttnn.MeshDevice,
        max_batch_size: int,
        *,
        max_seq_len: int,
        tt_data_parallel: int = 1,
        optimizations: Optional[str] = None,
    ) -> "QwenForCausalLM":
        """hf_config: transformers' Qwen2Config; its _name_or_path is vLLM's --model. Weights go to the chips here, through the
        user's tile cache."""
        recipe = recipe_of(optimizations)
        config = QwenConfig.from_dict(hf_config.to_dict(), source=f"{hf_config._name_or_path}")
        check_start(mesh_device, config, max_batch_size, max_seq_len, tt_data_parallel)
        cls._recipe = recipe
        batch = dict(batch=max_batch_size, max_seq_len=max_seq_len)
        return cls(load_model(open_checkpoint(hf_config._name_or_path), config, mesh_device, recipe, **batch))

    @classmethod
    def get_max_tokens_all_users(
        cls, *, model_name: str, num_devices: int, tt_data_parallel: int, max_model_len: int, max_num_seqs: int
    ) -> int:
        """Tokens that the cache is to hold: full contexts of all sequences, or what the chips' DRAM has room for.

        The plugin adds a block for each sequence to it.
        """
        config = open_checkpoint(model_name).config
        plan = ParallelPlan.make(config, num_devices // tt_data_parallel)
        room = cache_tokens(config, plan, cls._recipe, max_model_len) - max_num_seqs * max(BLOCKS)
        return max(0, min(room, max_num_seqs * max_model_len))

    def allocate_kv_cache(self, kv_cache_shape: Sequence[int], dtype: torch.dtype, num_layers: int) -> list[TtKVCache]:
        """kv_cache_shape: (blocks, KV heads of a chip, tokens of a block, head_dim). The recipe decides the format, not dtype."""
        model, (blocks, _, block, _) = self.model, kv_cache_shape
        device = model.mesh_device
        check_caches(device, model.config, model.plan, model.recipe, kv_cache_shape, num_layers)
        caches = allocate_caches(device, model.config, model.plan, model.recipe, blocks, block)
        self.replica = Replica(model, caches, traced=can_trace(device))
        self._rows = DecodeRows(self.replica)
        return caches

    def warmup_model_prefill(self, *, kv_cache: Any, enable_trace: bool, can_sample_on_device: bool) -> None:
        """Called without traces for all to be compiled, then with them, for nothing may be compiled once they exist."""
        if enable_trace:
            with capturing(self.replica.traced):
                warm_up_passes(self.replica, traced=True)
        else:
            warm_up_passes(self.replica, traced=False)

    def warmup_model_decode(
        self, *, kv_cache: Any, enable_trace: bool, max_batch_size: int, num_blocks: int, can_sample_on_device: bool
    ) -> None:
        if enable_trace:
            with capturing(self.replica.traced):
                warm_up_decode(self.replica, traced=True)
        else:
            warm_up_decode(self.replica, traced=False)

    # ---- steps

    def prefill_forward(
        self,
        *,
        tokens: torch.Tensor,
        page_table: torch.Tensor,
        kv_cache: Any,
        prompt_lens: Sequence[int],
        start_pos: Sequence[int],
        enable_trace: bool = False,
        empty_slots: Optional[Sequence[int]] = None,
        sampling_params: Any = None,
    ) -> Chosen:
        """tokens[i, start_pos[i] : prompt_lens[i]] of each row, the cache holding those before; what follows is garbage.

        Returns logits [rows, 1, vocab_size] float32, or, with sampling_params, what was chosen by them.
        """
        self._rows.forget()
        rows, ends = len(prompt_lens), [int(n) for n in prompt_lens]
        texts = [tokens[row, :end].tolist() for row, end in enumerate(ends)]
        blocks = [page_table[row, : ceil_div(end, self.replica.block)].tolist() for row, end in enumerate(ends)]
        prompts = [Prompt(i, texts[i], int(start_pos[i]), blocks[i]) for i in range(rows)]
        draws = [
            Draw(row, wish, self._answers.seen(texts[row]), ends[row])
            for row, wish in enumerate(wishes(sampling_params, rows) if sampling_params is not None else ())
        ]
        self._prepare(draws, anew=True)
        logits = torch.zeros(rows, 1, self.model.config.vocab_size)
        ids, log_probs = torch.zeros(rows, dtype=torch.int32), torch.zeros(rows)
        for work in plan_passes(prompts, self.model.longest_pass, self.replica.block):
            self.replica.prefill(work, traced=enable_trace)
            if work.answered and sampling_params is None:
                self.replica.read()
                logits[work.answered, 0] = self.replica.logits()[work.answered].float()
            elif work.answered:
                self._outcome([draws[row] for row in work.answered], ids, log_probs)
        if sampling_params is None:
            return logits
        return _result(draws, ids, log_probs)

    def decode_forward(
        self,
        *,
        tokens: torch.Tensor,
        page_table: torch.Tensor,
        kv_cache: Any,
        start_pos: torch.Tensor,
        enable_trace: bool = False,
        read_from_device: bool = False,
        sampling_params: Any = None,
        reset_batch: bool = True,
        prompt_tokens: Optional[torch.Tensor] = None,
        output_tokens: Optional[torch.Tensor] = None,
        slot_remap: Optional[torch.Tensor] = None,
    ) -> Chosen | PendingRead:
        """A token of each row. Returns logits [batch, 1, vocab_size] float32, or, with sampling_params, what was chosen: on
        its way, if the chips chose all of it.

        reset_batch: who is in which row has changed. It may be False where the last steps left no tokens on the chips, so
        those are placed anew, too.
        """
        choosing = sampling_params is not None
        positions = self._rows.place(tokens, start_pos, page_table, anew=reset_batch or not choosing)
        if not choosing:
            self.replica.launch(traced=enable_trace)
            self.replica.read()
            self._rows.forget()
            return self.replica.logits()[: self.batch].float()[:, None]
        seen = seen_rows(prompt_tokens, output_tokens, self.batch)
        asked = zip(wishes(sampling_params, self.batch), seen, positions)
        draws = [Draw(row, wish, seen, p + 1) for row, (wish, seen, p) in enumerate(asked) if p >= 0]
        self._prepare(draws, anew=self._rows.anew)
        self.replica.launch(traced=enable_trace)
        if not any(draw.wish.reads_logits or draw.wish.remembers for draw in draws):
            return self.replica.take()
        ids, log_probs = torch.zeros(self.batch, dtype=torch.int32), torch.zeros(self.batch)
        self._outcome(draws, ids, log_probs)
        if any(draw.wish.on_host for draw in draws):
            self._rows.chosen(ids.tolist())
        return _result(draws, ids, log_probs)

    def read_decode_output(self, tt_out: Any, async_read: bool = False) -> Any:
        """What decode_forward returned, and the events that say that it is there."""
        if not async_read:
            return tt_out
        on_its_way = isinstance(tt_out, PendingRead) and tt_out.done is not None
        return tt_out, [tt_out.done] if on_its_way else []

    def process_decode_output_host(self, tt_out: Any, is_tokens: bool = True) -> Chosen:
        """It as a torch tensor, once it is there. Another thread than the one that launches steps may call this."""
        if not isinstance(tt_out, PendingRead):
            return tt_out
        return torch.tensor(token_ids(tt_out)[: self.batch], dtype=torch.int32)

    def modules(self) -> Iterator:
        """vLLM looks for torch modules when it exits."""
        return iter(())

    # ---- choosing

    def _prepare(self, draws: Sequence[Draw], *, anew: bool) -> None:
        """Tell the chips how to choose what they can; rows that the host chooses for are greedy to them.

        anew: what the draws say that was seen is right, and the chips are to go on from it.
        """
        here = [draw for draw in draws if not (draw.wish.on_host or draw.wish.sampling.greedy)]
        penalised = [draw for draw in draws if draw.wish.sampling.penalised and not draw.wish.on_host]
        wanted = [GREEDY] * self.batch
        noise = torch.zeros(MAX_USERS, CANDIDATES)
        for draw in (*here, *penalised):
            wanted[draw.row] = draw.wish.sampling
        if penalised and anew:
            self.replica.place_seen({draw.row: draw.seen for draw in penalised})
        if wanted != self._placed:
            self.replica.place_sampling(wanted)
            self._placed = wanted
        if here:
            noise[[draw.row for draw in here]] = gumbel(
                [draw.wish.key for draw in here], [draw.position for draw in here], CANDIDATES
            )
            self.replica.place_noise(noise)

    def _outcome(self, draws: Sequence[Draw], ids: torch.Tensor, log_probs: torch.Tensor) -> None:
        """Wait for the step or pass just launched, and write what was chosen at the draws' rows of ids and log_probs."""
        chosen = self.replica.read()
        logits = None
        if any(draw.wish.reads_logits for draw in draws):
            logits = self.replica.logits()
        for row, wish, seen, position in draws:
            ids[row] = chosen[row]
            if wish.on_host:
                ids[row] = choose(logits[row], wish.sampling, wish.key, position, seen)
            if wish.log_prob:
                log_probs[row] = logits[row].float().log_softmax(-1)[ids[row]]
            if wish.remembers:
                self._answers.written(seen, int(ids[row]))


def _result(draws: Sequence[Draw], ids: torch.Tensor, log_probs: torch.Tensor) -> Chosen:
    return (ids, log_probs) if any(draw.wish.log_prob for draw in draws) else ids
