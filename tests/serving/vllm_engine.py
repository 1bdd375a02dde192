"""A small engine that calls a model class as Tenstorrent's vLLM plugin does: in its order, by its names, with its traps.

Traps: page tables and tokens with leftovers of others behind a row's own; rows that move; block 0 for nobody; tokens and
positions that are a step behind while steps are in flight; reset_batch used up by steps that the host samples; texts whose
blocks were taken, that come back as prompts; prompts whose first blocks another prompt of the same call computes.
"""

from collections import OrderedDict, deque
from dataclasses import dataclass, field, fields
from itertools import count
from types import SimpleNamespace
from typing import Optional

import numpy as np
import torch
import ttnn

ROWS, MAX_LEN, BLOCK, NEW_TOKENS = 32, 512, 64, 20
_seeds = count()


@dataclass
class TTSamplingParams:
    """One request's, or lists of all rows': named as in the plugin. Defaults are those of rows without a request."""

    temperature: float = 0.0
    top_k: int = 1
    top_p: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    seed: Optional[int] = None
    num_logprobs: int = -2
    enable_log_probs: bool = False


@dataclass(eq=False)
class Request:
    prompt: list[int]
    new_tokens: int
    sampling: TTSamplingParams = field(default_factory=TTSamplingParams)
    stop_ids: frozenset[int] = frozenset()
    host_until: int = 0  # tokens of the answer before which vLLM's own sampler must work (min_tokens)
    answer: list[int] = field(default_factory=list)
    log_probs: list[float] = field(default_factory=list)
    blocks: list[int] = field(default_factory=list)
    cached: int = 0

    @property
    def tokens(self) -> list[int]:
        return self.prompt + self.answer

    @property
    def penalised(self) -> bool:
        s = self.sampling
        return (s.presence_penalty, s.frequency_penalty, s.repetition_penalty) != (0, 0, 1)

    @property
    def done(self) -> bool:
        return len(self.answer) >= self.new_tokens or bool(self.answer and self.answer[-1] in self.stop_ids)


def start(
    model_class, mesh_device, checkpoint, *, rows, max_len, block, blocks=None, optimizations="accuracy", trace=True
):
    """The model with its caches, warmed up, as the plugin starts it: (model, kv_cache, blocks)."""
    hf_config = HFConfig(checkpoint)
    model = model_class.initialize_vllm_model(
        hf_config, mesh_device, rows, max_seq_len=max_len, tt_data_parallel=1, optimizations=optimizations
    )
    chips = mesh_device.get_num_devices()
    budget = model_class.get_max_tokens_all_users(
        model_name=hf_config._name_or_path,
        num_devices=chips,
        tt_data_parallel=1,
        max_model_len=max_len,
        max_num_seqs=rows,
    )
    blocks = blocks or -(-(budget + block * rows) // block)
    heads = hf_config.num_key_value_heads // min(chips, hf_config.num_key_value_heads)
    shape = blocks, heads, block, hf_config.head_dim
    caches = model.allocate_kv_cache(shape, torch.bfloat16, hf_config.num_hidden_layers)
    width = min(-(-max_len // block), blocks)
    for enable_trace in (False, True) if trace else (False,):
        model.warmup_model_prefill(kv_cache=caches, enable_trace=enable_trace, can_sample_on_device=True)
        model.warmup_model_decode(
            kv_cache=caches, enable_trace=enable_trace, max_batch_size=rows, num_blocks=width, can_sample_on_device=True
        )
    return model, caches, blocks


def engine(served, **options) -> "Engine":
    return Engine(*served, BLOCK, rows=ROWS, max_len=MAX_LEN, **options)


def requests(prompts, text, **options) -> list["Request"]:
    return [Request(list(prompt), NEW_TOKENS, stop_ids=frozenset(text.stop_ids), **options) for prompt in prompts]


@torch.no_grad()
def greedy(hf, prompt, stop_ids, **options) -> list[int]:
    """Hugging Face's text."""
    out = hf.generate(
        torch.tensor([prompt]), max_new_tokens=NEW_TOKENS, do_sample=False, eos_token_id=sorted(stop_ids),
        attention_mask=torch.ones(1, len(prompt), dtype=torch.long), **options,
    )  # fmt: skip
    return out[0, len(prompt) :].tolist()


class HFConfig(SimpleNamespace):
    """What the class may know of transformers' Qwen2Config."""

    def __init__(self, checkpoint):
        import json

        self._fields = json.loads((checkpoint.directory / "config.json").read_text())
        super().__init__(_name_or_path=f"{checkpoint.directory}", **self._fields)

    def to_dict(self) -> dict:
        return dict(self._fields, architectures=["TTQwen2ForCausalLM"])


class Engine:
    """device: sample on the chips, else on the host. ahead: decode steps in flight. prefix_caching: known full blocks are
    not computed again. decode_as_prefill: as the plugin's main and stable send decode steps. chooser(request, logits): the
    host's, else the likeliest."""

    def __init__(
        self, model, kv_cache, blocks, block, *, rows, max_len, device=True, ahead=1, prefix_caching=False,
        decode_as_prefill=False, trace=True, chooser=None,
    ):  # fmt: skip
        self.model, self.kv_cache, self.block, self.trace = model, kv_cache, block, trace
        self.device, self.ahead, self.prefix_caching = device, ahead, prefix_caching
        self.decode_as_prefill, self.chooser = decode_as_prefill, chooser
        rng = np.random.default_rng(next(_seeds))
        # Block 0 is nobody's. Each engine deals out others first, which hold what other texts left there.
        self.free = OrderedDict.fromkeys((1 + rng.permutation(blocks - 1)).tolist())
        self.holders = [0] * blocks
        self.known: dict[tuple, int] = {}
        self.running: list[Request] = []
        self.waiting: deque[Request] = deque()
        self.capacity = rows
        self.flight: deque = deque()
        self.changed = True
        self.preempted = self.overlapped = self.hits = self.resumed_on_device = 0
        # What rows hold before anybody came: others' leftovers.
        self.token_ids = torch.from_numpy(rng.integers(0, 1000, (rows, max_len)).astype(np.int32))
        self.table = torch.from_numpy(rng.integers(1, blocks, (rows, -(-max_len // block))).astype(np.int32))

    def serve(self, requests: list[Request]) -> list[list[int]]:
        self.waiting.extend(requests)
        while self.waiting or self.running:
            self.step()
        return [request.answer for request in requests]

    def step(self) -> None:
        admitted = self._admit()
        if admitted:
            self._prefill(admitted)
            self.running = admitted + self.running  # those who decode come back behind the new ones
        elif self.decode_as_prefill:
            self._make_room()
            for request in self.running:
                request.cached = len(request.tokens) - 1
            self._prefill(self.running)
        else:
            self._decode()
        self._leave()

    # ---- prefill

    def _admit(self) -> list[Request]:
        admitted = []
        while self.waiting and len(self.running) + len(admitted) < self.capacity:
            request = self.waiting[0]
            found = self._found(request.tokens) if self.prefix_caching else []
            for block in found:
                self._hold(block)
            needed = -(-len(request.tokens) // self.block) - len(found)
            if needed > len(self.free):
                self._release(found)
                break
            self._drain()
            request.blocks, request.cached = found + [self._take() for _ in range(needed)], len(found) * self.block
            self.hits += len(found)
            if self.prefix_caching:  # at once: a prompt of the same call may find what this one is yet to compute
                self._learn(request, len(request.tokens))
            admitted.append(self.waiting.popleft())
        return admitted

    def _prefill(self, requests: list[Request]) -> None:
        self._drain()
        self._lay(requests)
        n, ends = len(requests), [len(r.tokens) for r in requests]
        device = self.device and all(len(r.answer) >= r.host_until for r in requests)
        out = self.model.prefill_forward(
            tokens=self.token_ids[:n, : max(ends)],
            page_table=self.table[:n].clone(),
            kv_cache=self.kv_cache,
            enable_trace=self.trace,
            prompt_lens=np.array(ends, dtype=np.int64),
            start_pos=np.array([r.cached for r in requests], dtype=np.int32),
            empty_slots=list(range(n)),
            **({"sampling_params": self._params(requests, n)} if device else {}),
        )
        self.changed = True
        self._apply(requests, out, device)

    # ---- decode

    def _decode(self) -> None:
        device = self.device and all(len(r.answer) >= r.host_until for r in self.running)
        steady = device and not self.changed and not any(r.penalised for r in self.running)
        if not steady:
            self._drain()
            self._leave()
        self._make_room()
        if not self.running:
            return
        if self.changed:
            steady = False
            self._drain()
            self._lay(self.running)
        behind = len(self.flight)
        self.overlapped += behind > 0
        for row, request in enumerate(self.running):
            self.token_ids[row, : len(request.tokens)] = torch.tensor(request.tokens)
            self.table[row, : len(request.blocks)] = torch.tensor(request.blocks)
        idle = self.capacity - len(self.running)
        tokens = torch.tensor([[r.tokens[-1]] for r in self.running] + [[0]] * idle, dtype=torch.int32)
        start_pos = torch.tensor([len(r.tokens) - 1 for r in self.running] + [-1] * idle, dtype=torch.int32)
        table = self.table.clone()
        table[len(self.running) :] = 0
        extra = {}
        if device:
            extra = {"sampling_params": self._params(self.running, self.capacity), "reset_batch": self.changed}
            self.resumed_on_device += not self.changed and self._last_on_host
            if any(r.penalised for r in self.running):
                extra["prompt_tokens"] = self._padded([r.prompt for r in self.running])
                extra["output_tokens"] = self._padded([r.answer for r in self.running])
        if self.changed:
            extra["slot_remap"] = torch.arange(self.capacity, dtype=torch.int32).flip(0)
        self.changed, self._last_on_host = False, not device
        out = self.model.decode_forward(
            tokens=tokens, page_table=table, kv_cache=self.kv_cache, start_pos=start_pos, enable_trace=self.trace,
            read_from_device=False, **extra,
        )  # fmt: skip
        events = []
        if self.ahead > 1:
            out, events = self.model.read_decode_output(out, async_read=True)
        self.flight.append((list(self.running), out, events, device))
        if not device or any(r.penalised for r in self.running):  # vLLM needs what was chosen for its next step
            self._drain()
        while len(self.flight) >= self.ahead:
            self._finish()

    _last_on_host = False

    def _finish(self) -> None:
        requests, out, events, device = self.flight.popleft()
        for event in events:
            ttnn.event_synchronize(event)
        if not isinstance(out, (torch.Tensor, tuple)):
            out = self.model.process_decode_output_host(out, is_tokens=device)
        self._apply(requests, out, device)

    def _drain(self) -> None:
        while self.flight:
            self._finish()

    def _make_room(self) -> None:
        """A block for each row that needs one; the last request makes room."""
        for request in list(self.running):
            if request.done or request not in self.running:
                continue
            while (len(request.tokens) - 1 + len(self.flight)) // self.block >= len(request.blocks):
                if self.free:
                    request.blocks.append(self._take())
                    continue
                self._drain()
                self._leave()
                if self.free or request not in self.running:
                    break
                self._preempt(self.running[-1])
                if request not in self.running:
                    break

    def _preempt(self, request: Request) -> None:
        self.preempted += 1
        self._learn(request, len(request.tokens) - 1)
        self._release(request.blocks)
        request.blocks = []
        self._move_out(request)
        self.waiting.appendleft(request)

    # ---- rows, blocks, results

    def _leave(self) -> None:
        for request in [r for r in self.running if r.done]:
            self._drain()  # its extra step, too
            self._learn(request, len(request.tokens) - 1)
            self._release(request.blocks)
            self._move_out(request)

    def _move_out(self, request: Request) -> None:
        """The last row fills the hole."""
        hole, last = self.running.index(request), self.running.pop()
        if last is not request:
            self.running[hole] = last
        self.changed = True

    def _lay(self, requests: list[Request]) -> None:
        """Write rows over what stood there, which is longer at times."""
        for row, request in enumerate(requests):
            self.token_ids[row, : len(request.tokens)] = torch.tensor(request.tokens)
            self.table[row, : len(request.blocks)] = torch.tensor(request.blocks)

    def _take(self) -> int:
        block = self.free.popitem(last=False)[0]
        self.known = {key: b for key, b in self.known.items() if b != block}
        self.holders[block] = 1
        return block

    def _hold(self, block: int) -> None:
        self.free.pop(block, None)
        self.holders[block] += 1

    def _release(self, blocks: list[int]) -> None:
        for block in reversed(blocks):
            self.holders[block] -= 1
            if not self.holders[block]:
                self.free[block] = None

    def _found(self, tokens: list[int]) -> list[int]:
        found = []
        for end in range(self.block, len(tokens), self.block):  # never all of it: the last block is computed anew
            block = self.known.get(tuple(tokens[:end]))
            if block is None:
                break
            found.append(block)
        return found

    def _learn(self, request: Request, computed: int) -> None:
        for i, end in enumerate(range(self.block, computed + 1, self.block)):
            self.known.setdefault(tuple(request.tokens[:end]), request.blocks[i])

    def _params(self, requests: list[Request], rows: int) -> TTSamplingParams:
        """As the plugin makes lists of float32 tensors; a top_k of 1 comes with a top_p of 0."""
        of_rows = [r.sampling for r in requests] + [TTSamplingParams()] * (rows - len(requests))
        lists = {f.name: [getattr(s, f.name) for s in of_rows] for f in fields(TTSamplingParams)}
        for name in ("temperature", "top_p", "presence_penalty", "frequency_penalty", "repetition_penalty"):
            lists[name] = torch.tensor(lists[name], dtype=torch.float32).tolist()
        lists["top_p"] = [0.0 if k == 1 else p for k, p in zip(lists["top_k"], lists["top_p"])]
        return TTSamplingParams(**lists)

    def _padded(self, rows: list[list[int]]) -> torch.Tensor:
        longest = max(map(len, rows), default=0)
        rows = rows + [[]] * (self.capacity - len(rows))
        return torch.tensor([row + [-1] * (longest - len(row)) for row in rows], dtype=torch.int32)

    def _apply(self, requests: list[Request], out, device: bool) -> None:
        log_probs = None
        if device and any(r.sampling.enable_log_probs for r in requests):
            out, log_probs = out
        if not device:
            logits = out[:, -1, :]
            out = logits.argmax(-1)
            if self.chooser:
                out = torch.tensor([self.chooser(request, row) for request, row in zip(requests, logits)])
        ids = out.flatten().tolist()
        for row, request in enumerate(requests):
            if request.done:  # a step that was launched before its end was known
                continue
            request.answer.append(ids[row])
            if request.sampling.enable_log_probs:
                request.log_probs.append(float(log_probs[row]))
