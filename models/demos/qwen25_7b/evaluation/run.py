"""Judging recipes of one model, one after the other, over one sample."""

from contextlib import contextmanager
from dataclasses import dataclass
from typing import Iterable, Iterator, Optional

from tqdm import tqdm

from models.common.mesh import command_queues, describe_backend, select_backend
from models.demos.qwen25_7b.config import Recipe
from models.demos.qwen25_7b.evaluation.reference import HuggingFace, Reading
from models.demos.qwen25_7b.evaluation.score import Score
from models.demos.qwen25_7b.evaluation.subject import Split, Subject, replicas_on
from models.demos.qwen25_7b.evaluation.texts import Sample


@dataclass(frozen=True)
class Run:
    """What a result was computed from."""

    subject: Subject
    split: Split
    sample: Sample
    below: str  # ttnn
    prefill: bool = False  # judge prefill instead of decode
    against: Optional[Subject] = (
        None  # whose Hugging Face model judges; the subject's own, unless it is a rounding of another
    )

    @classmethod
    def on(cls, backend: str, subject: Subject, split: Split, sample: Sample, **how) -> "Run":
        """Settles what is below ttnn: before ttnn is imported. how: prefill, against."""
        below = describe_backend(select_backend(backend, split.kind.name)).split(" (")[0]
        return cls(subject, split, sample, below, **how)

    @property
    def judged(self) -> str:
        return "prefill" if self.prefill else "decode"

    def __str__(self) -> str:
        return (
            f"{self.subject.name}, {self.split}, {self.judged}: {self.sample.tokens} tokens of {len(self.sample.texts)} texts, "
            f"{self.sample.source}{f', against {self.against.name}' if self.against else ''}; below ttnn: {self.below}"
        )

    def as_dict(self) -> dict:
        return {
            "model": self.subject.name,
            "against": (self.against or self.subject).name,
            "mesh": self.split.kind.name,
            "tp": self.split.tp,
            "dp": self.split.dp,
            "below ttnn": self.below,
            "judged": self.judged,
            "text": self.sample.source,
            "texts": len(self.sample.texts),
            "beginning": self.sample.beginning,
        }


def judge(run: Run, recipes: Iterable[Recipe]) -> Iterator[tuple[Recipe, Score]]:
    """Each recipe's score as soon as it is there. Iterate to the end: until then the mesh is open."""
    reading = HuggingFace((run.against or run.subject).directory).read(run.sample.texts)
    with run.split.open() as devices:
        for recipe in recipes:
            yield recipe, _judge(run, recipe, devices, reading)


def _judge(run: Run, recipe: Recipe, devices: list, reading: Reading) -> Score:
    from models.demos.qwen25_7b.evaluation.judge import judge_decode, judge_prefill

    sample = run.sample
    options = dict(max_seq_len=len(sample.texts[0]), queues=command_queues(), texts=len(sample.texts))
    with replicas_on(devices, run.subject.checkpoint, recipe, **options) as replicas, _bar(recipe, sample) as progress:
        if run.prefill:
            return judge_prefill(replicas[0], sample, reading, progress)
        return judge_decode(replicas, sample, reading, progress)


@contextmanager
def _bar(recipe: Recipe, sample: Sample) -> Iterator:
    # disable=None: no bar where stderr is no terminal
    with tqdm(desc=recipe.name, total=sample.tokens, unit="token", leave=False, disable=None) as bar:
        yield bar.update
