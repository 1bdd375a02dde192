"""Random requests through 32 rows: nobody gets another's text, nothing is left behind.

`make test` serves a few of them; all of issue 14's: pytest --mesh N300 tests/serving/test_soak.py --requests 2000 -s
"""

import random
import resource
from dataclasses import dataclass
from pathlib import Path
from typing import Optional, Sequence

import pytest
import ttnn

from models.demos.qwen25_7b.config.sampling import Sampling
from models.demos.qwen25_7b.serving.generator import Generator

ROWS, CONTEXT = 32, 320
BLOCKS = 150  # of 32 tokens; all rows' contexts would take 320
LEAK = 16 << 20  # bytes that the process may grow by in its second half; 32 rows' logits are 64 KiB
DRIFT = 32 << 10  # bytes a DRAM bank: which traces are captured, and whose logits the last pass left
SAMPLINGS = (
    Sampling(),
    Sampling(2.0, seed=1),
    Sampling(1.0, top_k=20, top_p=0.8, seed=2),
    Sampling(2.0, top_k=0, seed=3),  # this one and the next are chosen on the host
    Sampling(repetition_penalty=1.3),
)


@dataclass(frozen=True)
class Asked:
    """One request: which of the known texts, and what ends it early."""

    text: int
    stop: tuple[str, ...] = ()
    cancel_at: Optional[int] = None  # tokens


@pytest.fixture(scope="module")
def number(pytestconfig) -> int:
    return pytestconfig.getoption("--requests")


@pytest.fixture(scope="module")
def longest(number) -> int:
    """New tokens of a text."""
    return 16 if number >= 1000 else 5


@pytest.fixture(scope="module")
def replica(replica_of):
    replica = replica_of(ROWS, CONTEXT, blocks=BLOCKS)
    yield replica
    replica.close()


@pytest.fixture(scope="module")
def known(replica, prompts, number, longest, text):
    """[(prompt, sampling, its text of being alone)]: every prompt's length is different, as good as."""
    fitting = [prompt for prompt in prompts if len(prompt) + longest <= CONTEXT]
    drawn = random.Random(0).sample(fitting, 20 if number >= 1000 else 5)
    cases = [(prompt, SAMPLINGS[i % len(SAMPLINGS)]) for i, prompt in enumerate(drawn)]
    return [
        (prompt, sampling, [token.id for token in alone(replica, prompt, sampling, longest, text)])
        for prompt, sampling in cases
    ]


def alone(replica, prompt, sampling, longest, text):
    return Generator([replica]).generate([prompt], longest, stop_ids=text.stop_ids, sampling=sampling)


def draw(rng: random.Random, known, text) -> Asked:
    which = rng.randrange(len(known))
    ids = known[which][2]
    kind = rng.random()
    if kind < 0.2:
        return Asked(which, cancel_at=rng.randint(1, len(ids)))
    if kind < 0.4:
        whole = text.tokenizer.decode(ids, skip_special_tokens=True)
        at = rng.randrange(max(1, len(whole) - 1))
        return Asked(which, stop=("never said", whole[at : at + rng.randint(1, 4)] or "nothing"))
    return Asked(which)


def served(generator, asked: Sequence[Asked], known, new_tokens, text, leave_at: Optional[int]):
    """([ids], [text], whether it was left in the middle) of each request; leave_at: tokens after which all are dropped."""
    streams = [text.stream(a.stop) for a in asked]
    ids, ended = [[] for _ in asked], set()
    tokens = generator.generate(
        [known[a.text][0] for a in asked],
        new_tokens,
        stop_ids=text.stop_ids,
        sampling=[known[a.text][1] for a in asked],
    )
    for count, token in enumerate(tokens):
        user = token.user
        assert user not in ended, f"{asked[user]}: a token after its end"
        ids[user].append(token.id)
        streams[user].add(token.id, last=token.last)
        if streams[user].stopped or len(ids[user]) == asked[user].cancel_at:
            generator.cancel(user)
        if token.last or streams[user].stopped or len(ids[user]) == asked[user].cancel_at:
            ended.add(user)
        if count == leave_at:
            tokens.close()
            break
    return ids, streams, ended


def check(asked: Asked, ids, stream, ended: bool, known, new_tokens, text) -> None:
    expected = known[asked.text][2][:new_tokens]
    assert ids == expected[: len(ids)], asked
    whole = text.tokenizer.decode(expected, skip_special_tokens=True)
    ends = [whole.find(stop) for stop in asked.stop if stop in whole]
    if not ended:
        return
    if ends and stream.stopped:
        assert stream.text == whole[: min(ends)], asked
    elif asked.cancel_at is not None and asked.cancel_at < len(expected):
        assert len(ids) == asked.cancel_at, asked
    else:
        assert not ends and ids == expected and stream.text == whole, asked


def resident() -> int:
    """Bytes of this process in memory."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


def on_chips(mesh_device) -> int:
    return ttnn.get_memory_view(mesh_device, ttnn.BufferType.DRAM).total_bytes_allocated_per_bank


def test_random_requests_leave_nothing_behind_and_get_their_own_texts(
    replica, mesh_device, known, number, longest, text
):
    rng = random.Random(14)
    generator = Generator([replica])
    done, marks = 0, []
    while done < number:
        asked = [draw(rng, known, text) for _ in range(min(rng.randint(20, 100), number - done))]
        new_tokens = rng.randint(1, longest) if rng.random() < 0.3 else longest
        leave_at = rng.randrange(2 * len(asked)) if rng.random() < 0.2 else None
        ids, streams, ended = served(generator, asked, known, new_tokens, text, leave_at)
        for user, a in enumerate(asked):
            check(a, ids[user], streams[user], user in ended, known, new_tokens, text)
        assert leave_at is not None or len(ended) == len(asked), "somebody was never answered"
        assert generator.idle_blocks == replica.blocks, "a block is still somebody's"
        done += len(asked)
        marks.append((done, resident(), on_chips(mesh_device)))
        print(f"{done} requests, {marks[-1][1] >> 20} MiB of the host, {marks[-1][2]} bytes a bank", flush=True)
    middle = next(mark for mark in marks if mark[0] >= number // 2)
    assert marks[-1][1] - middle[1] < LEAK, marks
    assert marks[-1][2] - middle[2] < DRIFT, marks
