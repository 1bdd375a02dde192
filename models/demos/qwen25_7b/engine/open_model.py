"""open_model: from a checkpoint's name to a model that generates text."""

import weakref
from contextlib import AbstractContextManager, ExitStack, closing
from dataclasses import InitVar, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Iterator, Optional, Sequence

from ..config import BFP8, Recipe, recipe_named
from ..config.sampling import GREEDY, SamplingParams
from ..errors import UserError, check_integer
from ..plans.machines import Split
from ..plans.parallel_plan import MAX_USERS
from ..text.request import check_speculate, check_strings
from ..text.tokenizer import ChatTokenizer
from ..tt.mesh import command_queues, describe_backend, open_replicas, select_backend
from ..weights.cache import CachedCheckpoint, open_checkpoint
from ..weights.checkpoint import Checkpoint
from .host_memory import check_host_memory

if TYPE_CHECKING:
    from .generator import Generator


@dataclass(frozen=True)
class TextDelta:
    """The text that one token adds: "" for half a character or a special token."""

    user: int
    text: str
    token: int
    finish_reason: Optional[str]  # the last token's: "stop", or "length" for max_new_tokens; None before it


@dataclass(eq=False, repr=False)
class OpenModel(AbstractContextManager):
    """A model on a machine's chips. Close it, or use it as a context manager."""

    checkpoint: CachedCheckpoint | Checkpoint
    tokenizer: ChatTokenizer
    generator: "Generator"
    backend: str  # what is below ttnn, in words
    resources: InitVar[ExitStack]  # closed with the model

    _opened: ClassVar[Optional[weakref.finalize]] = None  # closes this process's newest model

    def __post_init__(self, resources: ExitStack):
        self.stop_ids = self.tokenizer.stop_ids | set(self.checkpoint.config.eos_token_ids)
        self._answers: weakref.WeakSet[Iterator[TextDelta]] = weakref.WeakSet()
        resources.callback(_end, self._answers)
        # A model that the program forgets is closed with its last reference, or at exit.
        self._close = OpenModel._opened = weakref.finalize(self, resources.close)

    def generate(
        self,
        prompts: Sequence[str] | Sequence[Sequence[int]],
        max_new_tokens: int = 64,
        sampling: Optional[SamplingParams] = None,
        *,
        stop: Sequence[str] = (),
    ) -> Iterator[TextDelta]:
        """Yield the answers' text as it comes; prompt u is user u.

        - prompts: texts, or the token ids of each.
        - sampling: default greedy.
        - stop: an answer ends before the first of these strings.
        """
        if not self._close.alive:
            raise UserError("the model is closed: open it again")
        if isinstance(prompts, str) or any(isinstance(prompt, str) for prompt in prompts):
            check_strings("prompts", prompts)
            prompts = [self.tokenizer.encode(prompt) for prompt in prompts]
        check_strings("stop", stop)
        tokens = self.generator.generate(prompts, max_new_tokens, stop_ids=self.stop_ids, sampling=sampling or GREEDY)
        answers = self._deltas(tokens, [self.tokenizer.detokenizer(stop) for _ in prompts])
        self._answers.add(answers)
        return answers

    def _deltas(self, tokens, detokenizers) -> Iterator[TextDelta]:
        with closing(tokens):
            for token in tokens:
                detokenizer = detokenizers[token.user]
                text = detokenizer.add(token.id, last=token.last)
                if detokenizer.stopped:
                    self.generator.cancel(token.user)
                reason = "length" if token.last else None
                if detokenizer.stopped or token.id in self.stop_ids:
                    reason = "stop"
                yield TextDelta(token.user, text, token.id, reason)

    def close(self) -> None:
        """End the answers that are being generated, and close the mesh."""
        self._close()

    def __exit__(self, *_) -> None:
        self.close()


def _end(answers: "weakref.WeakSet[Iterator[TextDelta]]") -> None:
    for deltas in list(answers):
        deltas.close()


def open_model(
    model: str | Path | CachedCheckpoint | Checkpoint,
    *,
    mesh: str | Split = "N300",
    tp: Optional[int] = None,
    backend: str = "auto",
    recipe: Recipe | str = BFP8,
    users: int = 1,
    max_seq_len: int = 1024,
    instruct: bool = True,
    tokenizer: Optional[ChatTokenizer] = None,
    on_host: bool = False,
    speculate: int = 1,
) -> OpenModel:
    """Open a checkpoint on a machine. Call it before ttnn is imported. A process has one open model.

    - model: a directory or hub id, loaded through the user's cache; or an open checkpoint.
    - mesh: N150, N300, N150x4, T3K or GALAXY; or a Split, which has tp. tp: chips that share a replica (default: all of
      a row).
    - recipe: number formats, as a Recipe, its name or a JSON file.
    - users: sequences at once, up to 32 a replica. Further prompts wait for a slot.
    - max_seq_len: tokens of the longest sequence, prompt and answer.
    - instruct: wrap prompts in the chat template. tokenizer: the checkpoint's unless one is given.
    - on_host: sample on the host.
    - speculate: tokens of a sequence in a step, 1 to 8 (speculation.py). The text stays the same.

    UserError for an argument that cannot be.
    """
    if OpenModel._opened is not None and OpenModel._opened.alive:
        raise UserError("this process has an open model already: close it first")
    split = mesh if isinstance(mesh, Split) else Split.of(mesh, tp)
    check_integer("users", users, 1, MAX_USERS * split.dp)
    check_speculate(speculate, on_host=on_host)
    recipe = recipe_named(recipe) if isinstance(recipe, str) else recipe
    checkpoint = open_checkpoint(model) if isinstance(model, (str, Path)) else model
    check_integer("max_seq_len", max_seq_len, 1, checkpoint.config.context)
    tokenizer = tokenizer or ChatTokenizer(checkpoint.directory, instruct=instruct)
    selected = select_backend(backend, split.kind.name)
    replicas = min(split.dp, users)
    check_host_memory(
        selected, checkpoint.config, split, recipe, replicas=replicas, users=users, max_seq_len=max_seq_len
    )

    from .generator import Generator
    from .replica import load_replicas

    queues = command_queues()
    with ExitStack() as resources:
        devices = resources.enter_context(open_replicas(split, queues=queues))[:users]
        replicas = load_replicas(
            devices, checkpoint, recipe, users=users, max_seq_len=max_seq_len, queues=queues, speculate=speculate
        )
        generator = Generator(replicas, on_host=on_host)
        resources.callback(generator.close)
        return OpenModel(checkpoint, tokenizer, generator, describe_backend(selected), resources.pop_all())
