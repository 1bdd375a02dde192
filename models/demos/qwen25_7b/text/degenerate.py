"""Degenerate text: words said twice, and loops of a phrase, as tt-metal's check_degenerate_output counts them.

Doubled words come from a decode loop that reads a stale token, position or trace input, loops also from a greedy base
model.
"""

import re
from collections import Counter
from typing import Optional, Sequence

MOST_DOUBLED, SHORTEST_DOUBLED = 0.10, 20  # share of adjacent pairs; words that tell
MOST_LOOPED, SHORTEST_LOOPED = 0.50, 50  # share of words in the commonest trigram


def degenerate(text: str) -> Optional[str]:
    """Return what is degenerate in a text, as one line; None: nothing above the thresholds."""
    words = re.findall(r"\w+", text.lower())
    doubled, looped = doubled_share(words), looped_share(words)
    if len(words) >= SHORTEST_DOUBLED and doubled > MOST_DOUBLED:
        return f"{doubled:.0%} of {len(words)} words repeat the word before"
    if len(words) >= SHORTEST_LOOPED and looped > MOST_LOOPED:
        return f"{looped:.0%} of {len(words)} words are one phrase of three"
    return None


def degenerate_answers(answers: Sequence[str]) -> Optional[str]:
    """Return how many answers are degenerate, with the first, as one line; None: none is."""
    found = [(i, what) for i, answer in enumerate(answers) if (what := degenerate(answer))]
    if not found:
        return None
    first, what = found[0]
    return f"{len(found)} of {len(answers)} degenerate, the first is answer {first}: {what}"


def doubled_share(words: Sequence[str]) -> float:
    """Share of adjacent pairs whose words are equal."""
    return sum(a == b for a, b in zip(words, words[1:])) / max(1, len(words) - 1)


def looped_share(words: Sequence[str]) -> float:
    """Share of words in repeats of the commonest trigram that do not overlap."""
    counts = Counter(zip(words, words[1:], words[2:]))
    if not counts:
        return 0.0
    top, covered, at = max(counts, key=counts.get), 0, 0
    while at <= len(words) - 3:
        found = tuple(words[at : at + 3]) == top
        covered, at = covered + 3 * found, at + (3 if found else 1)
    return covered / len(words)
