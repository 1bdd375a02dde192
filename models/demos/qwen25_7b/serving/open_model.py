"""open_model: from a checkpoint's name to a model that generates text."""

from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Callable, ContextManager, Iterator, Optional, Sequence

from models.common.errors import check_integer, check_type
from models.common.machines import check_tp, machine
from models.common.mesh import (
    command_queues,
    describe_backend,
    open_replicas,
    select_backend,
    traces_available,
)
from models.demos.qwen25_7b.config import BFP8, MAX_USERS, ParallelPlan, Recipe, recipe_named
from models.demos.qwen25_7b.config.sampling import GREEDY, SamplingParams
from models.demos.qwen25_7b.loading.opened import OpenedCheckpoint, open_checkpoint
from models.demos.qwen25_7b.serving.request import (
    check_new_tokens,
    check_prompts,
    check_speculate,
    check_stop,
)
from models.demos.qwen25_7b.serving.tokenizer import ChatTokenizer
from models.demos.qwen25_7b.weights import Checkpoint

if TYPE_CHECKING:
    from models.demos.qwen25_7b.serving.generator import Generator

Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class TextDelta:
    """The text that one token adds: "" for half a character or a special token."""

    user: int
    text: str
    last: bool


@dataclass(frozen=True)
class OpenModel:
    checkpoint: OpenedCheckpoint | Checkpoint
    tokenizer: ChatTokenizer
    generator: "Generator"
    backend: str  # below ttnn, in words

    @property
    def stop_ids(self) -> set[int]:
        return self.tokenizer.stop_ids | set(self.checkpoint.config.eos_token_ids)

    def generate(
        self,
        prompts: Sequence[str],
        max_new_tokens: int = 64,
        sampling: Optional[SamplingParams] = None,
        *,
        stop: Sequence[str] = (),
    ) -> Iterator[TextDelta]:
        """Yield the answers' text as it comes; prompt u is user u. sampling: default greedy.

        stop: an answer ends before the first of these strings.
        """
        check_prompts(prompts)
        check_new_tokens(max_new_tokens)
        check_type("sampling", sampling, (SamplingParams, type(None)), "a SamplingParams or None")
        check_stop(stop)
        return self._deltas(
            [self.tokenizer.encode(prompt) for prompt in prompts], max_new_tokens, sampling, stop
        )

    def _deltas(
        self,
        prompts: list[list[int]],
        max_new_tokens: int,
        sampling: Optional[SamplingParams],
        stop: Sequence[str],
    ) -> Iterator[TextDelta]:
        detokenizers = [self.tokenizer.detokenizer(stop) for _ in prompts]
        tokens = self.generator.generate(
            prompts, max_new_tokens, stop_ids=self.stop_ids, sampling=sampling or GREEDY
        )
        for token in tokens:
            detokenizer = detokenizers[token.user]
            text = detokenizer.add(token.id, last=token.last)
            if detokenizer.stopped:
                self.generator.cancel(token.user)
            yield TextDelta(token.user, text, token.last or detokenizer.stopped)


@contextmanager
def open_model(
    model: str | Path | OpenedCheckpoint | Checkpoint,
    *,
    mesh: str = "N300",
    tp: Optional[int] = None,
    backend: str = "auto",
    recipe: Recipe | str = BFP8,
    users: int = 1,
    max_seq_len: int = 1024,
    instruct: bool = True,
    tokenizer: Optional[ChatTokenizer] = None,
    on_host: bool = False,
    speculate: int = 1,
    verify_cache: bool = False,
    progress: Optional[Callable[[str], ContextManager[Progress]]] = None,
) -> Iterator[OpenModel]:
    """Open a checkpoint on a machine, and close it on the way out. Call it before ttnn is imported.

    - model: a directory or hub id, loaded through the user's tile cache; or an open checkpoint.
    - mesh: N150, N300, T3K or GALAXY. tp: chips that share a replica (default: all of a row).
    - recipe: number formats, as a Recipe, its name or a JSON file.
    - users: sequences at once, up to 32 a replica. Further prompts wait for a slot.
    - max_seq_len: tokens of the longest sequence, prompt and answer.
    - instruct: wrap prompts in the chat template. tokenizer: the checkpoint's unless one is given.
    - on_host: sample on the host.
    - speculate: tokens of a sequence in a step, 1 to 8 (speculation.py). The text stays the same.
    - verify_cache: check the model's cached tiles before they are used.
    - progress: called with a name; returns a context manager of a function of (bytes done, bytes in all).

    UserError for an argument that cannot be.
    """
    kind = machine(mesh)
    tp = kind.row if tp is None else tp
    check_tp(kind.name, tp)
    check_integer("users", users, 1, MAX_USERS * (kind.chips // tp))
    check_integer("max_seq_len", max_seq_len, 1)
    check_speculate(speculate, on_host=on_host)
    check_type("recipe", recipe, (Recipe, str), "a Recipe, its name or a JSON file's")
    check_type("tokenizer", tokenizer, (ChatTokenizer, type(None)), "a ChatTokenizer or None")
    for name, value in dict(instruct=instruct, on_host=on_host, verify_cache=verify_cache).items():
        check_type(name, value, bool, "True or False")
    check_type(
        "model", model, (str, Path, OpenedCheckpoint, Checkpoint),
        "a directory, a hub id or an open checkpoint",
    )  # fmt: skip
    recipe = recipe_named(recipe) if isinstance(recipe, str) else recipe
    checkpoint = open_checkpoint(model) if isinstance(model, (str, Path)) else model
    check_integer("max_seq_len", max_seq_len, 1, checkpoint.config.context)
    tokenizer = tokenizer or ChatTokenizer(checkpoint.directory, instruct=instruct)
    below = describe_backend(select_backend(backend, kind.name))

    from models.demos.qwen25_7b.loading.load import verify
    from models.demos.qwen25_7b.serving.generator import Generator
    from models.demos.qwen25_7b.serving.replica import Replica

    if verify_cache and isinstance(checkpoint, OpenedCheckpoint):
        verify(checkpoint, ParallelPlan.make(checkpoint.config, tp), recipe)
    queues, dp = command_queues(), kind.chips // tp
    with open_replicas(kind.name, tp, queues=queues) as devices:
        replicas = []
        for i, device in enumerate(devices[:users]):
            with (progress or _unseen)(f"weights {i + 1}/{dp}" if dp > 1 else "weights") as seen:
                replica = Replica.load(
                    device,
                    checkpoint,
                    checkpoint.config,
                    recipe,
                    users=min(MAX_USERS, len(range(i, users, dp))),
                    max_seq_len=max_seq_len,
                    traced=traces_available(),
                    queues=queues,
                    speculate=speculate,
                    progress=seen,
                )
            replicas.append(replica)
        generator = Generator(replicas, on_host=on_host)
        yield OpenModel(checkpoint, tokenizer, generator, below)
        generator.close()


@contextmanager
def _unseen(name: str) -> Iterator[Progress]:
    yield lambda done, total: None
