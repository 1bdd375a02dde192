"""The divergence of a model's predictions from Hugging Face's, token by token. Logarithms are natural: nats."""

from dataclasses import asdict, dataclass, fields
from typing import Callable, Iterable, Iterator, Optional, Sequence

import torch

from models.common.mesh import command_queues
from models.common.terminal import Progress
from models.demos.qwen25_7b.config import Recipe
from models.demos.qwen25_7b.evaluation.model import EvaluatedModel, Split, replicas_on
from models.demos.qwen25_7b.evaluation.reference import HuggingFace, Reading, Reference
from models.demos.qwen25_7b.evaluation.texts import ForcedText, Sample

OnProgress = Callable[[int, int], None]  # scored tokens, tokens in all


@dataclass(frozen=True)
class Score:
    """One value for each scored token."""

    kl: torch.Tensor  # KL(reference || ours)
    top1: torch.Tensor  # whether our first choice is the reference's
    top5: torch.Tensor  # whether our first choice is among the reference's first five
    nll: torch.Tensor  # -log of the probability that we give the text's next token
    reference_nll: torch.Tensor  # -log of the reference's probability

    def __len__(self) -> int:
        return len(self.kl)

    @classmethod
    def join(cls, parts: list["Score"]) -> "Score":
        return cls(
            *(torch.cat([getattr(part, field.name) for part in parts]) for field in fields(cls))
        )

    def summary(self) -> "Summary":
        median, high = self.kl.quantile(torch.tensor([0.5, 0.99], dtype=self.kl.dtype)).tolist()
        return Summary(
            tokens=len(self),
            kl_mean=float(self.kl.mean()),
            kl_median=median,
            kl_99th_percentile=high,
            kl_max=float(self.kl.max()),
            top1=float(self.top1.double().mean()),
            top5=float(self.top5.double().mean()),
            nll=float(self.nll.mean()),
            reference_nll=float(self.reference_nll.mean()),
        )


@dataclass(frozen=True)
class Summary:
    """Over all tokens of a Score. top1 and top5 are shares of 1."""

    tokens: int
    kl_mean: float
    kl_median: float
    kl_99th_percentile: float
    kl_max: float
    top1: float
    top5: float
    nll: float
    reference_nll: float


def compare(logits: torch.Tensor, reference: torch.Tensor, following: torch.Tensor) -> Score:
    """logits, reference: [tokens, vocab_size]. following: [tokens], the next token in the text."""
    ours, theirs = (x.double().log_softmax(-1) for x in (logits, reference))
    best = ours.argmax(-1, keepdim=True)
    return Score(
        # The sum over 150,000 words is -1e-17 where the two distributions are equal.
        kl=(theirs.exp() * (theirs - ours)).sum(-1).clamp_min(0),
        top1=best[:, 0] == theirs.argmax(-1),
        top5=(theirs.topk(5).indices == best).any(-1),
        nll=-ours.gather(-1, following[:, None])[:, 0],
        reference_nll=-theirs.gather(-1, following[:, None])[:, 0],
    )


def score_decode(
    replicas: Sequence, sample: Sample, reading: Reading, progress: OnProgress
) -> Score:
    """Score decode steps. The prediction after a prompt's last token is prefill's and does not count."""
    from models.demos.qwen25_7b.evaluation.teacher_forcing import predict_with_decode

    texts = [ForcedText(ids, sample.prompt_length) for ids in sample.texts]
    return _score(predict_with_decode(replicas, texts), sample, reading, progress)


def score_prefill(replica, sample: Sample, reading: Reading, progress: OnProgress) -> Score:
    """Score prefill at the positions that score_decode scores."""
    from models.demos.qwen25_7b.evaluation.teacher_forcing import predict_with_prefill

    texts = [ForcedText(ids, sample.prompt_length + 1) for ids in sample.texts]
    return _score(predict_with_prefill(replica, texts), sample, reading, progress)


def _score(predictions: Iterable, sample: Sample, reading: Reading, progress: OnProgress) -> Score:
    scored = [frozenset(positions) for positions in sample.scored]
    parts = []
    for prediction in predictions:
        places = list(zip(prediction.texts, prediction.positions))
        rows = [row for row, (text, position) in enumerate(places) if position in scored[text]]
        if rows:
            part = prediction.select(rows)
            following = [sample.texts[t][p + 1] for t, p in zip(part.texts, part.positions)]
            reference = reading.logits(part.texts, part.positions)
            parts.append(compare(part.logits, reference, torch.tensor(following)))
            progress(sum(map(len, parts)), sample.tokens)
    return Score.join(parts)


@dataclass(frozen=True)
class Agreement:
    """Shares of the scored tokens."""

    top1: float
    top5: float
    tokens: int


def agreement(replicas: Sequence, reference: Reference) -> Agreement:
    """Agreement of decode steps with a reference file, over the second half of its text."""
    from models.demos.qwen25_7b.evaluation.teacher_forcing import predict_with_decode

    first, among = [], []
    texts = reference.texts()
    for prediction in predict_with_decode(replicas, texts):
        choices = prediction.logits.float().argmax(-1)
        for text, position, choice in zip(prediction.texts, prediction.positions, choices):
            if position >= texts[text].prompt_length:  # before that the prediction is prefill's
                first.append(bool(choice == reference.top5[position, 0]))
                among.append(bool((choice == reference.top5[position]).any()))
    return Agreement(sum(first) / len(first), sum(among) / len(among), len(first))


@dataclass(frozen=True)
class Variant:
    """A recipe on a checkpoint's weights."""

    recipe: Recipe
    quantized: Optional[EvaluatedModel] = None  # weights rounded by `quantize`; None: the model's

    @property
    def name(self) -> str:
        return f"{self.recipe.name}, quantized" if self.quantized else self.recipe.name

    def as_dict(self) -> dict:
        weights = self.quantized.name if self.quantized else "as they are"
        return {"recipe": asdict(self.recipe), "weights": weights}


def conditions_of(model: EvaluatedModel, split: Split, backend: str, sample: Sample) -> dict:
    """What a result file says of a score beside the recipe. backend: what is below ttnn."""
    return {
        "model": model.name,
        "mesh": split.kind.name,
        "tp": split.tp,
        "dp": split.dp,
        "below ttnn": backend,
        "text": sample.source,
        "texts": len(sample.texts),
    }


@dataclass(frozen=True)
class Evaluation:
    """One model on one split over one sample: everything that a score depends on but the recipe."""

    model: EvaluatedModel
    split: Split
    sample: Sample
    backend: str  # what is below ttnn
    prefill: bool = False  # score prefill instead of decode

    @classmethod
    def on(
        cls,
        backend: str,
        model: EvaluatedModel,
        split: Split,
        sample: Sample,
        prefill: bool = False,
    ) -> "Evaluation":
        """Select the backend, which must happen before ttnn is imported."""
        return cls(model, split, sample, split.select_backend(backend), prefill)

    @property
    def phase(self) -> str:
        return "prefill" if self.prefill else "decode"

    def __str__(self) -> str:
        return (
            f"{self.model.name}, {self.split}, {self.phase}: {self.sample.tokens} tokens of "
            f"{len(self.sample.texts)} texts, {self.sample.source}; below ttnn: {self.backend}"
        )

    def as_dict(self) -> dict:
        conditions = conditions_of(self.model, self.split, self.backend, self.sample)
        return conditions | {"phase": self.phase, "prompt tokens": self.sample.prompt_length}

    def scores(self, variants: Iterable[Variant]) -> Iterator[tuple[Variant, Score]]:
        """Each variant's score as soon as it is known. The mesh is open until the iteration ends."""
        with Progress(f"Hugging Face in float32 reads {len(self.sample.texts)} texts"):
            reading = HuggingFace(self.model.directory).read(self.sample.texts)
        with self.split.open() as devices:
            for variant in variants:
                yield variant, self._score(variant, devices, reading)

    def _score(self, variant: Variant, devices: list, reading: Reading) -> Score:
        sample = self.sample
        model = variant.quantized or self.model
        options = dict(
            texts=len(sample.texts), max_seq_len=len(sample.texts[0]), queues=command_queues()
        )
        with (
            Progress(variant.name, "tokens") as progress,
            replicas_on(devices, model.checkpoint, variant.recipe, **options) as replicas,
        ):
            if self.prefill:
                return score_prefill(replicas[0], sample, reading, progress)
            return score_decode(replicas, sample, reading, progress)
