"""The report of a bring-up: report.md, read in two minutes, and report.json, which is worth sending back."""

import math
import re
from collections import defaultdict
from pathlib import Path
from typing import Any, Iterator, Optional

from models.demos.qwen25_7b.files import read_json, write_json, write_text
from models.demos.qwen25_7b.text.degenerate import degenerate_answers

from ..options import markdown
from .ops import WRONG
from .runner import Outcome, count

# Finds in a device operation's key the name and the dtype of a step's collective.
SUM_OF_A_STEP = re.compile(r"(AllReduceAsync|AllGather|ReduceScatter)\w* \w+: \[1, 1, 32, \d+\] (bfloat\w+)")
SHOWN = 12  # operations in the table, the longest first
SPEED = (
    "recipe", "users", "prompt", "first token ms", "step ms", "modeled ms", "miss", "tokens/s/user",
    "share of DRAM's bandwidth",
)  # fmt: skip
SERVER = "tokens in", "tokens out", "users", "first token ms", "tokens/s/user", "tokens/s", "tier"
# First token ms and tokens/s/user that tt-inference-server asks of one user at 128/128
# (model_performance_reference.json, August 2026), and how many times worse a tier may be.
TARGETS = {"N150": (44, 24), "N300": (37, 47), "T3K": (19, 92)}
TIERS = {"target": 1, "complete": 2, "functional": 10}
ANSWERS = "recipe", "KL to Hugging Face", "top-1", "top-5", "top-100", "tokens"
QUESTIONS = "split", "recipe", "right answers", "degenerate"
OPS = "op", "error", "gain", "equal", "us", "modeled us", "miss"


def write_report(out: Path, title: str, mesh: str, size: str, outcomes: dict[str, Outcome]) -> dict[str, Any]:
    """Write OUT/report.md and OUT/report.json from what the stages left in OUT. Returns the JSON's values."""
    ran = {name for name, outcome in outcomes.items() if outcome.verdict != "skipped"}
    read = lambda stage, pattern: [read_json(file) for file in sorted(out.glob(pattern)) if stage in ran]
    report = dict(title=title, mesh=mesh, size=size) | {
        "stages": {name: vars(outcome) for name, outcome in outcomes.items()},
        **{name: sum(read(name, f"{name}.json"), []) for name in ("machine", "ops", "speed")},
        "answers": [row for each in read("answers", "*-decode.json") for row in each["results"]],
        "questions": [
            {key: run[key] for key in ("split", "recipe", "results")}
            | {"degenerate": degenerate_answers(run["answers"])}
            for each in read("answers", "*-tasks.json")
            for run in each["runs"]
        ],
        "server": read("server", "server-*.json"),
    }
    text = "\n\n".join(_blocks(report, outcomes)) + "\n"
    write_json(out / "report.json", report)
    write_text(out / "report.md", text)
    return report


def _blocks(report: dict[str, Any], outcomes: dict[str, Outcome]) -> Iterator[str]:
    bad = {name: o for name, o in outcomes.items() if o.verdict not in ("green", "skipped")}
    green = ", ".join(name for name, o in outcomes.items() if o.verdict == "green") or "none"
    skipped = [f"{name} ({o.words})" for name, o in outcomes.items() if o.verdict == "skipped"]
    yield f"# {report['title']}"
    ended = f"{count(len(bad), 'stage')} did not end well: {', '.join(bad)}" if bad else "Every stage that ran is green"
    yield f"**{ended}.** Green: {green}{'; skipped: ' + ', '.join(skipped) if skipped else ''}."
    different = [fact for fact in report["machine"] if differs(fact)]
    if different:
        yield "This machine differs from what the plans assume:"
        yield "\n".join(f"- {f['what']}: found {f['found']}, plans assume {f['assumed']}" for f in different)
    found = {fact["what"]: fact["found"] for fact in report["machine"]}
    below = found.get("below ttnn", "machine that was not read")
    mark = "" if below == "silicon" else f"Times are of a {below} and say nothing about hardware"
    if mark:
        yield f"**{mark}.**"
    if bad:
        yield "## What failed"
        yield "\n".join(f"- {name}: {o}. Log: {name}.log" for name, o in bad.items())
    marked = f" ({mark})" if mark else ""
    if report["speed"]:
        yield f"## Steps, measured beside modeled{marked}"
        yield markdown(SPEED, map(_speed, report["speed"]))
        yield "A first token is of one prompt. The miss is modeled over measured time."
        yield f"Host transfers of a step, the most of these: {_transfers(report['speed'])}."
    if report["server"]:
        yield f"## Server{marked}"
        yield markdown(SERVER, (_server(row, report["mesh"]) for row in report["server"]))
    if report["answers"]:
        yield "## Answers"
        yield markdown(ANSWERS, map(_answer, report["answers"]))
    if report["questions"]:
        yield "## Questions"
        yield markdown(QUESTIONS, map(_questions, report["questions"]))
    if report["ops"]:
        yield f"## Operations, measured beside modeled{marked}"
        plans = [row for row in report["ops"] if "setting" not in row]
        timed = sorted((row for row in plans if (row["us"] or 0) > 0), key=lambda row: -row["us"])
        yield markdown(OPS, map(_op, timed[:SHOWN]))
        wrong = lambda row: row["failed"] or row.get("not_finite") or row["error"] is None or row["error"] > WRONG
        refused = (row["shown"] for row in plans if wrong(row))
        yield (
            f"The {SHOWN} longest; report.json has all. error, gain (1 is right) and share of equal values: beside the "
            "golden mesh's values. us: of one call in a trace. Refused, wrong or without values: "
            f"{', '.join(refused) or 'none'}."
        )
        sums = _sums(report["ops"])
        if sums:
            fastest = f"; the fastest is {min(sums, key=sums.get)}" if len(sums) > 1 else ""
            yield f"All-reduces of a step that have a time, the plan's first{fastest}:"
            yield "\n".join(f"- {name}: {us:.1f} us" for name, us in sums.items())
        yield "Other settings that were faster than the plan's by 5 % (error: of their values beside the plan's):"
        yield "\n".join(f"- {each}" for each in _faster(report["ops"])) or "none"


def differs(fact: dict[str, Any]) -> bool:
    return fact["assumed"] is not None and fact["found"] != fact["assumed"]


def _speed(row: dict[str, Any]) -> tuple[str, ...]:
    case = row["recipe"], f"{row['users']}", f"{row['prompt']}"
    if "refused" in row:
        return (*case, f"refused: {row['refused']}", "", "", "", "", "")
    step = row["step_ms"]
    modeled, share = _modeled(row.get("modeled_ms"), step), f"{row['share_of_dram']:.0%}"
    return *case, f"{row['first_token_ms']:.1f}", f"{step:.2f}", *modeled, f"{1e3 / step:.1f}", share


def _transfers(rows: list[dict[str, Any]]) -> str:
    """Without changed users, 0 writes, 1 read and the 128 bytes of 32 token ids are right."""
    steps = [row["transfers"] for row in rows if "transfers" in row]
    return ", ".join(f"{max(step[name] for step in steps):g} {name}" for name in steps[0]) if steps else "none"


def _modeled(modeled: Optional[float], measured: float) -> tuple[str, str]:
    """The time, and its miss."""
    return (f"{modeled:.1f}", f"{modeled / measured - 1:+.0%}") if modeled else ("", "")


def _server(row: dict[str, Any], mesh: str) -> tuple[str, ...]:
    """The cells of a file that vllm bench serve writes."""
    given, made = (row[f"total_{way}_tokens"] // row["completed"] for way in ("input", "output"))
    case = given, made, row["max_concurrency"]
    first, speed = row["mean_ttft_ms"], 1e3 / row["mean_tpot_ms"]
    times_worse = math.inf
    if mesh in TARGETS and case == (128, 128, 1):
        times_worse = max(first / TARGETS[mesh][0], TARGETS[mesh][1] / speed)
    tier = next((tier for tier, most in TIERS.items() if times_worse <= most), "")
    return *map(str, case), f"{first:.0f}", f"{speed:.1f}", f"{row['output_throughput']:.0f}", tier


def _answer(row: dict[str, Any]) -> tuple[str, ...]:
    """The cells of a file that the command eval writes."""
    shares = (f"{row[share]:.2%}" for share in ("top1", "top5", "top100"))
    return row["recipe"]["name"], f"{row['kl_mean']:.3g}", *shares, f"{row['tokens']}"


def _questions(run: dict[str, Any]) -> tuple[str, ...]:
    """The cells of a file that the command tasks writes."""
    right = run["results"]["questions"]["exact_match,flexible-extract"]
    return run["split"], run["recipe"]["name"], f"{right:.1%}", run["degenerate"] or "none"


def _op(row: dict[str, Any]) -> tuple[str, ...]:
    value = ("",) * 3
    if row["error"] is not None:
        value = f"{row['error']:.1e}", f"{row['gain']:.4f}", f"{row['equal']:.1%}"
    return row["shown"], *value, f"{row['us']:.1f}", *_modeled(row["modeled_us"], row["us"])


def _sums(rows: list[dict[str, Any]]) -> dict[str, float]:
    """us of each way to all-reduce 32 rows that ran, in the order of the record."""
    ops = []
    for row in rows:
        match = SUM_OF_A_STEP.match(row["device_op"] or "")
        if match and "setting" not in row:
            ops.append((match[1], match[2], row["us"]))
    found = {}
    for i, (name, dtype, us) in enumerate(ops):
        if name == "AllReduceAsync" and us:
            found[f"all_reduce_async of {dtype}"] = us
        elif name == "ReduceScatter":
            gather = next((us for name, _, us in ops[i:] if name == "AllGather"), None)
            if us and gather:
                found["reduce_scatter + all_gather"] = us + gather
    return found


def _faster(rows: list[dict[str, Any]]) -> Iterator[str]:
    """The fastest other setting of each operation."""
    others = defaultdict(list)
    for row in rows:
        if "setting" in row and (row["us"] or 0) > 0:
            others[row["of"]].append(row)
    for of, found in others.items():
        best, plan = min(found, key=lambda row: row["us"]), rows[of]["us"]
        if plan is not None and best["us"] < 0.95 * plan:
            error = f"error {best['error'] or 0:.1e}"
            yield f"{rows[of]['shown']} {best['setting']}: {best['us']:.1f} instead of {plan:.1f} us, {error}"
