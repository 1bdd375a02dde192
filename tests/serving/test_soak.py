"""Random requests through 32 slots: each request gets its own text, and no memory leaks.

`make test` serves a few requests. This command serves 2000:

    pytest --mesh N300 tests/serving/test_soak.py --requests 2000 -s
"""

import random
import resource
from dataclasses import dataclass
from pathlib import Path
from typing import Optional, Sequence

import pytest
import ttnn

from models.demos.qwen25_7b.config.sampling import SamplingParams
from models.demos.qwen25_7b.serving.generator import Generator

SLOTS, CONTEXT = 32, 320
BLOCKS = 150  # of 32 tokens; the contexts of all slots would take 320
LEAK = 16 << 20  # bytes of growth allowed in the second half; logits of 32 slots are 64 KiB
DRIFT = 32 << 10  # bytes a DRAM bank: captured traces and the last prefill batch's logits differ
SAMPLINGS = (
    SamplingParams(),
    SamplingParams(2.0, seed=1),
    SamplingParams(1.0, top_k=20, top_p=0.8, seed=2),
    SamplingParams(2.0, top_k=0, seed=3),
    SamplingParams(2.0, top_k=40, seed=3),  # the host samples this one
    SamplingParams(repetition_penalty=1.3),
)


@dataclass(frozen=True)
class Request:
    """One request: its index among the known texts, and the event that ends it early."""

    text: int
    stop: tuple[str, ...] = ()
    cancel_at: Optional[int] = None  # tokens


@pytest.fixture(scope="module")
def number(pytestconfig) -> int:
    return pytestconfig.getoption("--requests")


@pytest.fixture(scope="module")
def longest(number) -> int:
    """New tokens of a request."""
    return 16 if number >= 1000 else 5


@pytest.fixture(scope="module")
def replica(replica_of):
    replica = replica_of(SLOTS, CONTEXT, blocks=BLOCKS)
    yield replica
    replica.close()


@pytest.fixture(scope="module")
def known(replica, prompts, number, longest, tokenizer):
    """[(prompt, sampling, tokens that the request gets alone)]. Most prompt lengths differ."""
    fitting = [prompt for prompt in prompts if len(prompt) + longest <= CONTEXT]
    picked = random.Random(0).sample(fitting, 20 if number >= 1000 else 5)
    cases = [(prompt, SAMPLINGS[i % len(SAMPLINGS)]) for i, prompt in enumerate(picked)]
    return [
        (
            prompt,
            sampling,
            [token.id for token in alone(replica, prompt, sampling, longest, tokenizer)],
        )
        for prompt, sampling in cases
    ]


def alone(replica, prompt, sampling, longest, tokenizer):
    return Generator([replica]).generate(
        [prompt], longest, stop_ids=tokenizer.stop_ids, sampling=sampling
    )


def random_request(rng: random.Random, known, tokenizer) -> Request:
    which = rng.randrange(len(known))
    ids = known[which][2]
    kind = rng.random()
    if kind < 0.2:
        return Request(which, cancel_at=rng.randint(1, len(ids)))
    if kind < 0.4:
        whole = tokenizer.hf.decode(ids, skip_special_tokens=True)
        at = rng.randrange(max(1, len(whole) - 1))
        return Request(which, stop=("never said", whole[at : at + rng.randint(1, 4)] or "nothing"))
    return Request(which)


def served(
    generator, requested: Sequence[Request], known, new_tokens, tokenizer, leave_at: Optional[int]
):
    """Serve the requests. Return ([ids], [stream]) by request, and the set of ended requests.

    leave_at: index of the token after which all requests are dropped.
    """
    streams = [tokenizer.detokenizer(a.stop) for a in requested]
    ids, ended = [[] for _ in requested], set()
    tokens = generator.generate(
        [known[a.text][0] for a in requested],
        new_tokens,
        stop_ids=tokenizer.stop_ids,
        sampling=[known[a.text][1] for a in requested],
    )
    for count, token in enumerate(tokens):
        user = token.user
        assert user not in ended, f"{requested[user]}: a token after its end"
        ids[user].append(token.id)
        streams[user].add(token.id, last=token.last)
        if streams[user].stopped or len(ids[user]) == requested[user].cancel_at:
            generator.cancel(user)
        if token.last or streams[user].stopped or len(ids[user]) == requested[user].cancel_at:
            ended.add(user)
        if count == leave_at:
            tokens.close()
            break
    return ids, streams, ended


def check(requested: Request, ids, stream, ended: bool, known, new_tokens, tokenizer) -> None:
    expected = known[requested.text][2][:new_tokens]
    assert ids == expected[: len(ids)], requested
    whole = tokenizer.hf.decode(expected, skip_special_tokens=True)
    ends = [whole.find(stop) for stop in requested.stop if stop in whole]
    if not ended:
        return
    if ends and stream.stopped:
        assert stream.text == whole[: min(ends)], requested
    elif requested.cancel_at is not None and requested.cancel_at < len(expected):
        assert len(ids) == requested.cancel_at, requested
    else:
        assert not ends and ids == expected and stream.text == whole, requested


def resident() -> int:
    """Return the resident bytes of this process."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


def on_chips(mesh_device) -> int:
    return ttnn.get_memory_view(mesh_device, ttnn.BufferType.DRAM).total_bytes_allocated_per_bank


def test_random_requests_get_their_answers_and_free_all_blocks(
    replica, mesh_device, known, number, longest, tokenizer
):
    rng = random.Random(14)
    generator = Generator([replica])
    done, marks = 0, []
    while done < number:
        requested = [
            random_request(rng, known, tokenizer)
            for _ in range(min(rng.randint(20, 100), number - done))
        ]
        new_tokens = rng.randint(1, longest) if rng.random() < 0.3 else longest
        leave_at = rng.randrange(2 * len(requested)) if rng.random() < 0.2 else None
        ids, streams, ended = served(generator, requested, known, new_tokens, tokenizer, leave_at)
        for user, a in enumerate(requested):
            check(a, ids[user], streams[user], user in ended, known, new_tokens, tokenizer)
        assert leave_at is not None or len(ended) == len(requested), "a request got no answer"
        assert generator.free_blocks == replica.blocks, "a block is still in use"
        done += len(requested)
        marks.append((done, resident(), on_chips(mesh_device)))
        print(
            f"{done} requests, {marks[-1][1] >> 20} MiB of the host, {marks[-1][2]} bytes a bank",
            flush=True,
        )
    middle = next(mark for mark in marks if mark[0] >= number // 2)
    assert marks[-1][1] - middle[1] < LEAK, marks
    assert marks[-1][2] - middle[2] < DRIFT, marks
