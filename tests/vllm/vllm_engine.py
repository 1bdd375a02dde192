"""A small engine that calls a model class as Tenstorrent's vLLM plugin does.

It also reproduces the plugin's traps:
- Page tables and token rows hold leftovers of other requests after a request's own values.
- Requests move from slot to slot.
- Block 0 belongs to no request.
- Tokens and positions are one step behind while steps are in flight.
- A step that the host samples uses up reset_batch.
- A preempted request comes back as a prompt.
- A prompt may use first blocks that another prompt of the same call computes.
"""

from collections import deque
from dataclasses import fields
from itertools import count

import numpy as np
import torch
import ttnn

from models.demos.qwen25_7b.engine.scheduler import BlockPool
from tests.vllm.vllm_requests import BLOCK, MAX_LEN, SLOTS, Request, TTSamplingParams

_seeds = count()
FLOATS = "temperature", "top_p", "presence_penalty", "frequency_penalty", "repetition_penalty"


def engine(served, **options) -> "Engine":
    return Engine(*served, BLOCK, slots=SLOTS, max_len=MAX_LEN, **options)


class Engine:
    """Scheduler and block manager in the place of vLLM's.

    - device: Sample on the chips, otherwise on the host.
    - ahead: Decode steps in flight.
    - prefix_caching: Reuse known full blocks.
    - decode_as_prefill: Send decode steps as prefills, as the plugin's main and stable branches do.
    - host_sampler(request, logits): The host's sampler. Default: greedy.
    """

    def __init__(
        self, model, kv_cache, blocks, block, *, slots, max_len, device=True, ahead=1, prefix_caching=False,
        decode_as_prefill=False, trace=True, host_sampler=None,
    ):  # fmt: skip
        self.model, self.kv_cache, self.block, self.trace = model, kv_cache, block, trace
        self.device, self.ahead, self.prefix_caching = device, ahead, prefix_caching
        self.decode_as_prefill, self.host_sampler = decode_as_prefill, host_sampler
        rng = np.random.default_rng(next(_seeds))
        self.pool = BlockPool(blocks, block)
        assert self.pool.allocate(1) == [0]
        # Each engine allocates in another order, so blocks hold old sequences.
        self.pool.free(rng.permutation(self.pool.allocate(blocks - 1)).tolist())
        self.running: list[Request] = []
        self.waiting: deque[Request] = deque()
        self.capacity = slots
        self.flight: deque = deque()
        self.changed = True  # requests have changed slots since the last step
        self.last_on_host = False
        self.preempted = self.overlapped = self.hits = self.resumed_on_device = 0
        # Slots start with leftovers of other requests.
        self.token_ids = torch.from_numpy(rng.integers(0, 1000, (slots, max_len)).astype(np.int32))
        self.table = torch.from_numpy(rng.integers(1, blocks, (slots, -(-max_len // block))).astype(np.int32))

    def serve(self, requests: list[Request]) -> list[list[int]]:
        self.waiting.extend(requests)
        while self.waiting or self.running:
            self.step()
        return [request.answer for request in requests]

    def step(self) -> None:
        admitted = self._admit()
        if admitted:
            self._prefill(admitted)
            self.running = admitted + self.running  # decoding requests come after new ones
        elif self.decode_as_prefill:
            self.preempt()
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
            # Never the whole prompt: its last block is computed.
            found = self.pool.lookup_prefix(request.tokens[:-1]) if self.prefix_caching else []
            self.pool.reference(found)
            needed = -(-len(request.tokens) // self.block) - len(found)
            if needed > self.pool.num_free:
                self.pool.free(found)
                break
            self._drain()
            request.blocks = found + self.pool.allocate(needed)
            request.cached = len(found) * self.block
            self.hits += len(found)
            if self.prefix_caching:
                # At once: another prompt of the same call may reuse these blocks.
                self.pool.register_prefix(request.tokens, request.blocks)
            admitted.append(self.waiting.popleft())
        return admitted

    def _prefill(self, requests: list[Request]) -> None:
        self._drain()
        self._lay(requests)
        n, ends = len(requests), [len(r.tokens) for r in requests]
        device = self.device and all(len(r.answer) >= r.host_until for r in requests)
        self.model.prompt_lengths = np.array([len(r.prompt) for r in requests])  # as MeshWorker
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
        steady = device and not self.changed and not any(r.penalized for r in self.running)
        if not steady:
            self._drain()
            self._leave()
        self.preempt()
        if not self.running:
            return
        if self.changed:
            self._drain()
        self.overlapped += len(self.flight) > 0
        self._lay(self.running)
        inactive = self.capacity - len(self.running)
        newest = [[r.tokens[-1]] for r in self.running] + [[0]] * inactive
        positions = [len(r.tokens) - 1 for r in self.running] + [-1] * inactive
        table = self.table.clone()
        table[len(self.running) :] = 0
        extra = {}
        if device:
            extra["sampling_params"] = self._params(self.running, self.capacity)
            extra["reset_batch"] = self.changed
            self.resumed_on_device += not self.changed and self.last_on_host
            if any(r.penalized for r in self.running):
                extra["prompt_tokens"] = self._padded([r.prompt for r in self.running])
                extra["output_tokens"] = self._padded([r.answer for r in self.running])
        if self.changed:
            extra["slot_remap"] = torch.arange(self.capacity, dtype=torch.int32).flip(0)
        tokens = torch.tensor(newest, dtype=torch.int32)
        start_pos = torch.tensor(positions, dtype=torch.int32)
        self.changed = False
        self.last_on_host = not device
        out = self.model.decode_forward(
            tokens=tokens, page_table=table, kv_cache=self.kv_cache, start_pos=start_pos,
            enable_trace=self.trace, read_from_device=False, **extra,
        )  # fmt: skip
        events = []
        if self.ahead > 1:
            out, events = self.model.read_decode_output(out, async_read=True)
        self.flight.append((list(self.running), out, events, device))
        if not device or any(r.penalized for r in self.running):
            self._drain()  # vLLM needs the sampled tokens for its next step
        while len(self.flight) >= self.ahead:
            self._finish()

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

    def preempt(self) -> None:
        """Give a block to each request that needs one. Preempt the last request if none is free."""
        for request in list(self.running):
            while request in self.running and not request.done and self._next_block(request) >= len(request.blocks):
                if self.pool.num_free:
                    request.blocks += self.pool.allocate(1)
                elif self.flight:
                    self._drain()
                    self._leave()
                else:
                    last = self.running[-1]
                    self.preempted += 1
                    self._move_out(last)
                    self.waiting.appendleft(last)

    def _next_block(self, request: Request) -> int:
        """The number of the block, in the request's table, that the next step writes."""
        return (len(request.tokens) - 1 + len(self.flight)) // self.block

    # ---- slots, blocks, results

    def _leave(self) -> None:
        for request in [r for r in self.running if r.done]:
            self._drain()  # its extra step, too
            self._move_out(request)

    def _move_out(self, request: Request) -> None:
        """Remove a request and free its blocks. The last request moves to its slot."""
        self.pool.register_prefix(request.tokens[:-1], request.blocks)
        self.pool.free(request.blocks)
        request.blocks = []
        hole, last = self.running.index(request), self.running.pop()
        if last is not request:
            self.running[hole] = last
        self.changed = True

    def _lay(self, requests: list[Request]) -> None:
        """Write the requests' slots over the old values, which may be longer."""
        for slot, request in enumerate(requests):
            self.token_ids[slot, : len(request.tokens)] = torch.tensor(request.tokens)
            self.table[slot, : len(request.blocks)] = torch.tensor(request.blocks)

    def _params(self, requests: list[Request], slots: int) -> TTSamplingParams:
        """Return the plugin's lists of float32 values. A top_k of 1 comes with a top_p of 0."""
        of_slots = [r.sampling for r in requests] + [TTSamplingParams()] * (slots - len(requests))
        lists = {f.name: [getattr(s, f.name) for s in of_slots] for f in fields(TTSamplingParams)}
        for name in FLOATS:
            lists[name] = torch.tensor(lists[name], dtype=torch.float32).tolist()
        lists["top_p"] = [0.0 if k == 1 else p for k, p in zip(lists["top_k"], lists["top_p"])]
        return TTSamplingParams(**lists)

    def _padded(self, ids: list[list[int]]) -> torch.Tensor:
        longest = max(map(len, ids), default=0)
        ids = ids + [[]] * (self.capacity - len(ids))
        return torch.tensor([row + [-1] * (longest - len(row)) for row in ids], dtype=torch.int32)

    def _apply(self, requests: list[Request], out, device: bool) -> None:
        log_probs = None
        if device and any(r.sampling.enable_log_probs for r in requests):
            out, log_probs = out
        if not device:
            logits = out[:, -1, :]
            out = logits.argmax(-1)
            if self.host_sampler:
                out = torch.tensor([self.host_sampler(*pair) for pair in zip(requests, logits)])
        ids = out.flatten().tolist()
        for slot, request in enumerate(requests):
            if request.done:  # the step was launched before the end was known
                continue
            request.answer.append(ids[slot])
            if request.sampling.enable_log_probs:
                request.log_probs.append(float(log_probs[slot]))
