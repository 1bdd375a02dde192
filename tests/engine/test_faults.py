"""An error, or Ctrl-C, in a step ends its call only: the next call has its texts, and no slot or block is lost.

Faults lie inside a step, in every kind of step: in the second layer or the sampling while the step compiles or is
captured, in a write, in a read.
"""

import gc

import pytest
import ttnn

from models.demos.qwen25_7b.config.sampling import SamplingParams
from models.demos.qwen25_7b.engine.generator import Generator
from models.demos.qwen25_7b.engine.trace import PendingRead, Queues
from tests.generation import generate, greedy

NEW_TOKENS = 4
RANDOM = SamplingParams(1.0, seed=1)
PENALIZED = SamplingParams(repetition_penalty=1.3)
FULL = SamplingParams(3.0, top_k=0, seed=2)

# Who has the function that fails. Layers 0 and 1 are one class.
OWNERS = {
    "layer": lambda replica: type(replica.model.layers[1]),
    "attention": lambda replica: type(replica.model.layers[1].attention),
    "sampler": lambda replica: type(replica.model.sampler),
    "queues": lambda replica: Queues,
    "read": lambda replica: PendingRead,
    "ttnn": lambda replica: ttnn,
}
COMPILE, CAPTURE = 2, 4  # calls of two layers: a step runs op by op, then it is captured
ERRORS = RuntimeError, KeyboardInterrupt
# (sampling, owner, function, which of its calls fails)
FAULTS = {
    "prefill, layer, compile": (None, "layer", "forward_prefill", COMPILE),
    "prefill, layer, capture": (None, "layer", "forward_prefill", CAPTURE),
    "chunked prefill, layer, compile": (None, "attention", "attend_chunks", COMPILE),
    "chunked prefill, layer, capture": (None, "attention", "attend_chunks", CAPTURE),
    "decode, layer, compile": (None, "layer", "forward_decode", COMPILE),
    "decode, layer, capture": (None, "layer", "forward_decode", CAPTURE),
    "greedy, sampling, compile": (None, "sampler", "sample_greedy", 1),
    "greedy, sampling, capture": (None, "sampler", "sample_greedy", 2),
    "random, sampling, compile": (RANDOM, "sampler", "sample_random", 3),  # after a prefill's
    "random, sampling, capture": (RANDOM, "sampler", "sample_random", 4),
    "penalized, prefill's sampling": (PENALIZED, "sampler", "sample_penalized", 1),
    "penalized, sampling, compile": (PENALIZED, "sampler", "sample_penalized", 3),
    "penalized, sampling, capture": (PENALIZED, "sampler", "sample_penalized", 4),
    "full, sampling, compile": (FULL, "sampler", "sample_full", 3),
    "full, sampling, capture": (FULL, "sampler", "sample_full", 4),
    "prefill, write": (None, "queues", "write", 1),
    "decode, write": (RANDOM, "queues", "write", 8),
    "prefill, read": (None, "read", "token_ids", 1),
    "decode, read": (None, "read", "token_ids", 4),
    "begin of a capture": (None, "ttnn", "begin_trace_capture", 1),
    "end of a capture": (None, "ttnn", "end_trace_capture", 2),
    "replay": (None, "ttnn", "execute_trace", 1),
}


def fail_at(patched, owner, name, call, error) -> list:
    """Let owner.name raise at its call number `call`. Return a list that is not empty afterwards."""
    real, calls, raised = getattr(owner, name), [], []

    def failing(*args, **options):
        calls.append(name)
        if len(calls) != call:
            return real(*args, **options)
        if name == "end_trace_capture":
            real(*args, **options)
        raised.append(name)
        raise error("TT_FATAL: out of memory")

    patched.setattr(owner, name, failing)
    return raised


@pytest.fixture(scope="module")
def prompts(tokenizer):
    """Prompt 1 begins as prompt 0 does, so that a chunked prefill computes its rest."""
    first, second, third = map(tokenizer.encode, ("What is 7 + 5?", "Name the planets.", "Spell the word banana."))
    beginning = (first * 20)[:64]
    return [beginning + second, beginning + third]


@pytest.fixture(scope="module")
def expected(hf, prompts, tokenizer):
    return [greedy(hf, prompt, NEW_TOKENS, tokenizer.stop_ids) for prompt in prompts]


@pytest.fixture(scope="module")
def replica(request, replica_of):
    replica = replica_of(2, 256, speculate=request.param)
    yield replica
    replica.close()


def answers(generator, prompts, tokenizer, sampling=None):
    """One prompt after the other, so that the second one has a cached prefix."""
    options = {} if sampling is None else {"sampling": sampling}
    return [generate(generator, [prompt], NEW_TOKENS, stop_ids=tokenizer.stop_ids, **options)[0] for prompt in prompts]


def allocated(replica) -> list[int]:
    """Bytes of a bank in L1, DRAM and the trace region."""
    kinds = ttnn.BufferType.L1, ttnn.BufferType.DRAM, ttnn.BufferType.TRACE
    views = [ttnn.get_memory_view(replica.mesh_device, kind) for kind in kinds]
    return [view.total_bytes_allocated_per_bank for view in views]


def cases() -> list:
    """(tokens a step, fault, error). Drafts are verified without penalties: half of the others have some."""
    return [
        (4 if i % 2 and sampling in (None, RANDOM) else 1, fault, ERRORS[i // 2 % 2])
        for i, (fault, (sampling, *_)) in enumerate(FAULTS.items())
    ]


@pytest.mark.parametrize("replica, fault, error", cases(), indirect=["replica"], ids=str)
def test_a_fault_ends_its_call_only(replica, prompts, expected, tokenizer, monkeypatch, fault, error):
    sampling, owner, name, call = FAULTS[fault]
    # Another test has compiled this kind of step and captured it. Here it runs op by op first, as in a new process.
    replica.traces.release()
    replica.traces.compiled.clear()
    generator = Generator([replica])
    with monkeypatch.context() as patched:
        raised = fail_at(patched, OWNERS[owner](replica), name, call, error)
        gc.collect()  # what the fault before left in a circle
        held = allocated(replica)
        with pytest.raises(error) as living:
            answers(generator, prompts, tokenizer, sampling)
        assert raised, "the step has no such call"
    assert living and allocated(replica) == held, "activations or traces outlive the call"
    assert answers(generator, prompts, tokenizer) == expected
    (engine,) = generator._engines
    assert not engine.running and not replica.in_flight


def test_a_call_closed_before_all_prompts_are_computed(replica_of, hf, tokenizer):
    """Their blocks are known by their tokens from the start. The next call must not read blocks that nothing wrote."""
    beginning = (tokenizer.encode("Name the planets.") * 30)[:320]
    ends = ("What is 7 + 5?", "Spell the word banana.", "Count from 3 to 30. Name the months of the year. Why?")
    prompts = [beginning + 2 * tokenizer.encode(end) for end in ends]
    replica = replica_of(3, 512)
    generator = Generator([replica])
    call = generator.generate(prompts, NEW_TOKENS, stop_ids=tokenizer.stop_ids)
    next(call)  # of the first prompt: the others read its beginning in a later batch
    call.close()
    for prompt in reversed(prompts):
        (text,) = generate(generator, [prompt], NEW_TOKENS, stop_ids=tokenizer.stop_ids)
        assert text == greedy(hf, prompt, NEW_TOKENS, tokenizer.stop_ids)
    replica.close()
