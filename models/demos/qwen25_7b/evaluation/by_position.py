"""`eval --by-position`: the divergence of recipes in buckets by position, decode and prefill apart.

A bucket has the last tokens up to a position. The same tokens are scored in every bucket: a longer bucket
begins the same text earlier. What differs between buckets is therefore the position alone.
"""

import argparse
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Iterator, Sequence

import torch

from models.common.errors import UserError
from models.common.markdown import table_at_end
from models.common.mesh import command_queues
from models.common.output_file import check_directory, write_json
from models.common.terminal import Progress, complain, say
from models.demos.qwen25_7b.evaluation.divergence import (
    Score,
    Variant,
    compare,
    conditions_of,
    score_decode,
    score_prefill,
)
from models.demos.qwen25_7b.evaluation.model import EvaluatedModel, Split, replicas_on
from models.demos.qwen25_7b.evaluation.reference import HuggingFace, Reading
from models.demos.qwen25_7b.evaluation.report import (
    LEGEND,
    PositionPoint,
    plot_positions,
    result_file,
)
from models.demos.qwen25_7b.evaluation.texts import Sample, check_sample, longest_context, sample

SHORTEST = 128  # tokens: the first bucket's end, unless --by-position names the ends
COLUMNS = "recipe, phase, up to, KL mean, std. error, KL of weights, top-1, NLL, NLL of Hugging Face, tokens"
POSITION_LEGEND = (
    "The last --steps tokens up to each position are scored. KL of weights: Hugging Face in float32 with weights in the "
    "recipe's formats."
)


def add_by_position(parser: argparse._ActionsContainer) -> None:
    parser.add_argument(
        "--by-position",
        nargs="?",
        type=bucket_ends,
        const=(),
        metavar="ENDS",
        help="score decode and prefill in buckets that end at these positions, comma-separated; --steps tokens a "
        f"bucket, prompts as long as needed (ENDS: {SHORTEST}, {2 * SHORTEST}, ... to the model's context or as long "
        "as the file has --texts)",
    )


def bucket_ends(value: str) -> tuple[int, ...]:
    """The ends that an option names. ArgumentTypeError: they are not ascending numbers."""
    ends = tuple(int(word) if word.isdecimal() else 0 for word in value.split(","))
    if any(end <= before for before, end in zip((0, *ends), ends)):
        raise argparse.ArgumentTypeError(
            f"takes ascending numbers of tokens, separated by commas, got {value!r}"
        )
    return ends


@dataclass(frozen=True)
class Bucket:
    end: int  # the last prediction follows the token at position end - 1
    sample: Sample  # its texts have end + 1 tokens


def buckets_from(args: argparse.Namespace, model: EvaluatedModel) -> list[Bucket]:
    """The buckets that the options describe. UserError: they do not fit the model, the text or --steps."""
    check_sample(args)
    tokenizer, context = model.tokenizer(), model.config.context
    source = tokenizer, model.directory, args.text
    ends = args.by_position
    if not ends:
        longest = longest_context(*source, count=args.texts, steps=args.steps, most=context)
        ends = _powers_of_two(SHORTEST, max(SHORTEST, longest))
    for before, end in zip((1, *ends), ends):
        if end - before < args.steps:
            raise UserError(
                f"--steps {args.steps} exceeds the bucket from position {before} to {end}: give fewer --steps, or other ENDS "
                "to --by-position"
            )
    if ends[-1] > context:
        raise UserError(
            f"--by-position {ends[-1]} exceeds the model's {context} positions: give less"
        )
    longest = sample(
        *source, count=args.texts, prompt_length=ends[-1] - args.steps, steps=args.steps
    )
    return [Bucket(end, longest.without_first(ends[-1] - end)) for end in ends]


def _powers_of_two(first: int, last: int) -> list[int]:
    return [first << i for i in range((last // first).bit_length())]


@dataclass(frozen=True)
class PositionScore:
    """A variant's score in one bucket."""

    variant: Variant
    phase: str  # "decode" or "prefill"
    end: int  # of the bucket
    score: Score
    weights: Score  # of Hugging Face in float32 with weights in the recipe's formats

    @property
    def kl_error(self) -> float:
        """The standard error of the mean KL, from the spread over tokens."""
        return float(self.score.kl.std(correction=0)) / len(self.score) ** 0.5

    def row(self) -> tuple[str, ...]:
        """The cells under COLUMNS."""
        s = self.score.summary()
        place = (self.variant.name, self.phase, str(self.end))
        kl = (f"{s.kl_mean:.3g}", f"{self.kl_error:.1g}", f"{float(self.weights.kl.mean()):.3g}")
        return (*place, *kl, f"{s.top1:.2%}", f"{s.nll:.4f}", f"{s.reference_nll:.4f}", str(s.tokens))  # fmt: skip

    def as_dict(self) -> dict:
        place = {"phase": self.phase, "up to": self.end}
        weights = {"kl_error": self.kl_error, "kl_of_weights": float(self.weights.kl.mean())}
        return self.variant.as_dict() | place | asdict(self.score.summary()) | weights

    def point(self) -> PositionPoint:
        s = self.score.summary()
        nll = s.nll - s.reference_nll
        kl_of_weights = float(self.weights.kl.mean())
        return PositionPoint(
            self.variant.name, self.phase, self.end, s.kl_mean, self.kl_error, kl_of_weights, s.top1, nll
        )  # fmt: skip


@dataclass(frozen=True)
class PositionEvaluation:
    """One model on one split: everything that a score depends on but the recipe."""

    model: EvaluatedModel
    split: Split
    buckets: Sequence[Bucket]
    backend: str  # what is below ttnn

    def __str__(self) -> str:
        longest = self.buckets[-1].sample
        return (
            f"{self.model.name}, {self.split}, by position: {longest.tokens} tokens of {len(longest.texts)} texts in each "
            f"bucket, {longest.source}; below ttnn: {self.backend}"
        )

    def as_dict(self) -> dict:
        return conditions_of(self.model, self.split, self.backend, self.buckets[-1].sample)

    def scores(self, variants: Sequence[Variant]) -> Iterator[PositionScore]:
        """Each score as soon as it is known. The mesh is open until the iteration ends."""
        with Progress("Hugging Face in float32 reads the texts of all buckets"):
            readings = self._read(HuggingFace(self.model.directory))
        with self.split.open() as devices:
            for variant in variants:
                with Progress(f"Hugging Face reads with the weights of {variant.name}"):
                    weights = self._score_weights(variant, readings)
                yield from self._score(variant, devices, readings, weights)

    def _read(self, hugging_face: HuggingFace) -> list[Reading]:
        return [hugging_face.read(bucket.sample.texts) for bucket in self.buckets]

    def _score_weights(self, variant: Variant, readings: list[Reading]) -> list[Score]:
        model = variant.quantized or self.model
        in_formats = HuggingFace(model.directory, variant.recipe)
        pairs = zip(self.buckets, self._read(in_formats), readings)
        return [_compared(bucket.sample, ours, reference) for bucket, ours, reference in pairs]

    def _score(
        self, variant: Variant, devices: list, readings: list[Reading], weights: list[Score]
    ) -> Iterator[PositionScore]:
        model = variant.quantized or self.model
        # One context for all buckets: the chunks of attention depend on it.
        options = dict(
            texts=len(self.buckets[0].sample.texts),
            max_seq_len=self.buckets[-1].end,
            queues=command_queues(),
        )
        with replicas_on(devices, model.checkpoint, variant.recipe, **options) as replicas:
            for bucket, reading, of_weights in zip(self.buckets, readings, weights):
                for phase, score_phase, on in (
                    ("decode", score_decode, replicas),
                    ("prefill", score_prefill, replicas[0]),
                ):
                    with Progress(f"{variant.name}, {phase} to {bucket.end}", "tokens") as progress:
                        score = score_phase(on, bucket.sample, reading, progress)
                    yield PositionScore(variant, phase, bucket.end, score, of_weights)


def _compared(sample: Sample, ours: Reading, reference: Reading) -> Score:
    """The score of one reading of a sample against another."""
    parts = []
    for text, positions in enumerate(sample.scored):
        if positions:
            logits, expected = (
                r.logits([text] * len(positions), positions) for r in (ours, reference)
            )
            following = torch.tensor([sample.texts[text][p + 1] for p in positions])
            parts.append(compare(logits, expected, following))
    return Score.join(parts)


def evaluate_by_position(
    args: argparse.Namespace, model: EvaluatedModel, split: Split, variants: Sequence[Variant]
) -> None:
    """Print the table, and write JSON and plot to --out. args: of the command `eval`."""
    if args.prefill:
        raise UserError("--by-position scores decode and prefill: leave --prefill out")
    buckets = buckets_from(args, model)
    check_directory("--out", args.out)
    evaluation = PositionEvaluation(model, split, buckets, split.select_backend(args.backend))
    say(f"{evaluation}\n{LEGEND} {POSITION_LEGEND}\n")
    plot, data = (
        result_file(args.out, model.name, split, "by-position", kind) for kind in ("png", "json")
    )
    scores = _collect(evaluation, variants, data)
    plot_positions(plot, f"{evaluation}", [score.point() for score in scores])
    say(f"\n{data}, {plot}")


def _collect(
    evaluation: PositionEvaluation, variants: Sequence[Variant], data: Path
) -> list[PositionScore]:
    """All scores. The JSON is written after each, and the table at the end."""
    scores: list[PositionScore] = []

    def rows() -> list[tuple[str, ...]]:
        by_phase = sorted(scores, key=lambda s: s.phase)  # stable: by recipe and position
        return [s.row() for s in by_phase]

    with table_at_end(COLUMNS.split(", "), rows):
        for score in evaluation.scores(variants):
            scores.append(score)
            kl = float(score.score.kl.mean())
            complain(f"{score.variant.name}, {score.phase} up to {score.end}: KL {kl:.3g}")
            entries = [each.as_dict() for each in scores]
            write_json(data, evaluation.as_dict() | {"buckets": entries})
    return scores
