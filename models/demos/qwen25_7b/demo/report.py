"""The output of a demo run: answers as they come, a table, or a file of JSON lines; then the speed."""

import json
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Optional, Sequence

from models.common.output_file import write_whole
from models.common.terminal import printable, say

if TYPE_CHECKING:
    from models.demos.qwen25_7b.config import Recipe
    from models.demos.qwen25_7b.config.sampling import SamplingParams
    from models.demos.qwen25_7b.serving.generator import Token
    from models.demos.qwen25_7b.serving.open_model import OpenModel
    from models.demos.qwen25_7b.serving.speculation import SpeculationStats


class Answers:
    """The answers of a run, their text and their times.

    One answer is shown token by token. Several are a table where stdout is a terminal; elsewhere each
    is shown whole, in the order of the prompts, as soon as those before it are complete.
    """

    def __init__(
        self,
        prompts: Sequence[str],
        token_ids: Sequence[Sequence[int]],
        model: "OpenModel",
        stop: Sequence[str],
    ):
        self.prompts = prompts
        self.token_ids = token_ids
        self.model = model
        self.detokenizers = [model.tokenizer.detokenizer(stop) for _ in prompts]
        self.reasons: list[Optional[str]] = [None] * len(prompts)  # why an answer ended
        self.speed = Speed(len(prompts), min(len(prompts), model.generator.users))
        self.finished = 0
        self._shown = 0  # whole answers
        self._as_table = len(prompts) > 1 and sys.stdout.isatty()

    def begin(self, now: float) -> None:
        """Show the prompt of a single user and start the clock."""
        if len(self.prompts) == 1:
            say(f"\n> {shortened(self.prompts[0])}")
        self.speed.begin(now)

    def add(self, token: "Token", now: float) -> bool:
        """Take a new token. Returns whether a stop string ends the answer here."""
        self.speed.add(token.user, now)
        detokenizer = self.detokenizers[token.user]
        text = detokenizer.add(token.id, last=token.last)
        if len(self.prompts) == 1:
            say(text, end="")
        if detokenizer.stopped or token.last:
            is_stop = detokenizer.stopped or token.id in self.model.stop_ids
            self.reasons[token.user] = "stop" if is_stop else "length"
            self.finished += 1
            self._show_finished()
        return detokenizer.stopped

    def end(self) -> None:
        """Show what was not shown while the answers came."""
        if len(self.prompts) == 1:
            say("\n")
        elif self._as_table:
            show_table(self.prompts, [d.text for d in self.detokenizers], self.speed.tokens)
        else:
            say()

    def save(self, file: Path) -> None:
        """Write a line of JSON for each prompt. UserError: `file` cannot be written any more."""
        lines = "".join(json.dumps(record, ensure_ascii=False) + "\n" for record in self._records())
        write_whole(file, lambda path: path.write_text(lines, encoding="utf-8"))

    def summary(self, where: str, recipe: "Recipe") -> str:
        """The run in four lines: where, time to first token, decode speed, the backend of ttnn."""
        return (
            f"{where}, {len(self.prompts)} user(s), recipe {recipe}\n{self.speed}\n"
            f"  below ttnn           {self.model.backend}"
        )

    def _show_finished(self) -> None:
        if len(self.prompts) == 1 or self._as_table:
            return
        while self._shown < len(self.prompts) and self.reasons[self._shown]:
            prompt, answer = self.prompts[self._shown], self.detokenizers[self._shown].text
            say(f"\n> {shortened(prompt)}\n{answer}")
            self._shown += 1

    def _records(self) -> list[dict]:
        return [
            {
                "user": user,
                "prompt": prompt,
                "answer": self.detokenizers[user].text,
                "prompt_tokens": len(self.token_ids[user]),
                "new_tokens": self.speed.tokens[user],
                "finish_reason": self.reasons[user],
            }
            for user, prompt in enumerate(self.prompts)
        ]


class Speed:
    """Times of a run, in seconds of any clock.

    The time before a token counts as prefill where the token is a user's first, else as decode.
    users: in all. at_once: of them, in a step.
    """

    def __init__(self, users: int, at_once: int):
        self.tokens = [0] * users
        self.prefill = self.decode = 0.0
        self._at_once = at_once
        self._last = 0.0

    def begin(self, now: float) -> None:
        self._last = now

    def add(self, user: int, now: float) -> None:
        """A user got a token."""
        if self.tokens[user]:
            self.decode += now - self._last
        else:
            self.prefill += now - self._last
        self.tokens[user] += 1
        self._last = now

    def __str__(self) -> str:
        users = len(self.tokens)
        decoded = sum(self.tokens) - users
        rate = decoded / self.decode if self.decode else 0.0
        per_user = f"{rate:.2f} tokens/s, {rate / self._at_once:.2f} tokens/s/user"
        return (
            f"  time to first token  {1e3 * self.prefill / users:.0f} ms (mean; compiling included)\n"
            f"  decode               {per_user if decoded else '-'}"
        )


def sampling_line(sampling: "SamplingParams") -> str:
    """In words, without what is off."""
    how = "greedy"
    if not sampling.greedy:
        top_k = sampling.top_k or "off"
        how = f"temperature {sampling.temperature}, top-k {top_k}, top-p {sampling.top_p}"
    penalty = f", repetition penalty {sampling.repetition_penalty}"
    return how + (penalty if sampling.penalized else "")


def speculation_line(stats: "SpeculationStats") -> str:
    """The summary's line of several tokens a step."""
    rate = f" ({stats.tokens / stats.steps:.2f} a step)" if stats.steps else ""
    return (
        f"  speculation          {stats.tokens} tokens in {stats.steps} steps{rate}; "
        f"{stats.accepted} of {stats.drafted} draft tokens were accepted, a step saved by each"
    )


def shortened(prompt: str, most: int = 2000) -> str:
    """A long prompt's two ends."""
    if len(prompt) <= most:
        return prompt
    half = most // 2
    return f"{prompt[:half]}\n[... {len(prompt) - most} characters ...]\n{prompt[-half:]}"


def show_table(prompts: Sequence[str], answers: Sequence[str], tokens: Sequence[int]) -> None:
    """One line a user, cut to the terminal's width."""
    width = max(60, shutil.get_terminal_size((120, 24)).columns)
    prompts, answers = [_line(text) for text in prompts], [_line(text) for text in answers]
    prompt_width = min(max(map(len, prompts)), width // 3)
    answer_width = width - prompt_width - 14
    say(f"\n{'user':>4}  {'prompt':<{prompt_width}}  {'new':>3}  answer")
    for user, (prompt, answer, count) in enumerate(zip(prompts, answers, tokens)):
        say(
            f"{user:>4}  {_cut(prompt, prompt_width):<{prompt_width}}  {count:>3}  {_cut(answer, answer_width)}"
        )
    say()


def _line(text: str) -> str:
    return printable(" ".join(text.split()))


def _cut(line: str, width: int) -> str:
    return line if len(line) <= width else line[: width - 1] + "…"
