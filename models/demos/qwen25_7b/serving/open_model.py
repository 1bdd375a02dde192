"""From the name of a checkpoint to a model that writes text: the whole of this package behind one call."""

from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Callable, ContextManager, Iterator, Optional, Sequence

from models.common.mesh import (
    check_tp,
    command_queues,
    describe_backend,
    machine,
    open_replicas,
    select_backend,
    traces_available,
)
from models.demos.qwen25_7b.config import BFP8, MAX_USERS, ParallelPlan, Recipe, recipe_named
from models.demos.qwen25_7b.loading.opened import OpenedCheckpoint, open_checkpoint
from models.demos.qwen25_7b.serving.request import check_speculate, check_stop
from models.demos.qwen25_7b.serving.text import Text
from models.demos.qwen25_7b.weights import Checkpoint

if TYPE_CHECKING:
    from models.demos.qwen25_7b.config.sampling import Sampling
    from models.demos.qwen25_7b.serving.generator import Generator

Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class Piece:
    """What one token adds to a user's text: nothing while a character's bytes are incomplete, and for special tokens."""

    user: int
    text: str
    last: bool


@dataclass(frozen=True)
class OpenModel:
    checkpoint: OpenedCheckpoint | Checkpoint
    text: Text
    generator: "Generator"
    backend: str  # what is below ttnn, in words

    @property
    def stop_ids(self) -> set[int]:
        return self.text.stop_ids | set(self.checkpoint.config.eos_token_ids)

    def write(
        self,
        prompts: Sequence[str],
        max_new_tokens: int = 64,
        sampling: "Optional[Sampling]" = None,
        *,
        stop: Sequence[str] = (),
    ) -> Iterator[Piece]:
        """Answers, piece by piece as they come; prompt u is user u. sampling: greedy unless it says otherwise.

        stop: strings; an answer ends before the first of them.
        """
        check_stop(stop)
        return self._pieces([self.text.encode(prompt) for prompt in prompts], max_new_tokens, sampling, stop)

    def _pieces(
        self, prompts: list[list[int]], max_new_tokens: int, sampling: "Optional[Sampling]", stop: Sequence[str]
    ) -> Iterator[Piece]:
        from models.demos.qwen25_7b.config.sampling import GREEDY

        streams = [self.text.stream(stop) for _ in prompts]
        tokens = self.generator.generate(prompts, max_new_tokens, stop_ids=self.stop_ids, sampling=sampling or GREEDY)
        for token in tokens:
            stream = streams[token.user]
            piece = stream.add(token.id, last=token.last)
            if stream.stopped:
                self.generator.cancel(token.user)
            yield Piece(token.user, piece, token.last or stream.stopped)


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
    text: Optional[Text] = None,
    on_host: bool = False,
    speculate: int = 1,
    verify_cache: bool = False,
    progress: Optional[Callable[[str], ContextManager[Progress]]] = None,
) -> Iterator[OpenModel]:
    """A checkpoint on a machine, closed again on the way out.

    model: a directory or hub id, loaded through the user's tile cache; or what was opened already, by open_checkpoint
    (through another cache, or none) or as a Checkpoint (through none); text likewise. mesh: N150, N300 or T3K; tp: chips
    that share a replica of it (default: all). recipe: number formats: a Recipe, its name or a JSON file. users: texts that are written at once, up to 32 a replica; more prompts than
    that take turns. max_seq_len: tokens of the longest text, prompt and answer. instruct: wrap prompts in the chat
    template. on_host: choose tokens on the host. speculate: tokens of a text that a step may give, 1 to 8: while users leave
    rows of the 32 free, those behind the first are guessed from what the text has said before, and kept if they are right; the
    text is the same. verify_cache: check all of the model's tiles there before they are used.
    progress: given a name, a context manager of what is called with (bytes placed, bytes in all).
    To be called before ttnn is imported. UserError for what cannot be.
    """
    check_speculate(speculate, on_host=on_host)
    kind = machine(mesh)
    tp = kind.chips if tp is None else tp
    check_tp(kind.name, tp)
    recipe = recipe_named(recipe) if isinstance(recipe, str) else recipe
    checkpoint = model if isinstance(model, (OpenedCheckpoint, Checkpoint)) else open_checkpoint(model)
    text = text or Text(checkpoint.directory, instruct=instruct)
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
        yield OpenModel(checkpoint, text, generator, below)
        generator.close()


@contextmanager
def _unseen(name: str) -> Iterator[Progress]:
    yield lambda done, total: None
