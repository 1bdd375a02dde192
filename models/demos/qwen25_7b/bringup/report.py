"""The report of a bring-up: report.md, read in two minutes, and report.json, which is worth sending back."""

import json
import math
import re
from collections import defaultdict
from pathlib import Path
from typing import Any, Iterator, Optional

from models.demos.qwen25_7b.bringup.runner import Outcome
from models.demos.qwen25_7b.cli.terminal import markdown

COLLECTIVE_OF_A_STEP = re.compile(r"(AllReduceAsync|AllGather|ReduceScatter)\w* \w+: \[1, 1, 32, ")
SHOWN = 12  # operations in the table, the longest first


def write_report(out: Path, title: str, size: str, outcomes: dict[str, Outcome]) -> dict[str, Any]:
    """Write OUT/report.md and OUT/report.json from what the stages left in OUT. Returns the JSON's values."""
    report = {
        "title": title,
        "size": size,
        "stages": {name: vars(outcome) for name, outcome in outcomes.items()},
        "machine": _kept(out, "machine"),
        "ops": _kept(out, "ops"),
        "speed": _kept(out, "speed"),
        "server": [json.loads(file.read_text()) for file in sorted(out.glob("server-*.json"))],
    }
    (out / "report.json").write_text(json.dumps(report, indent=1))
    (out / "report.md").write_text("\n\n".join(_blocks(report, outcomes)) + "\n")
    return report


def _kept(out: Path, name: str) -> list[dict[str, Any]]:
    file = out / f"{name}.json"
    return json.loads(file.read_text()) if file.exists() else []


def _blocks(report: dict[str, Any], outcomes: dict[str, Outcome]) -> Iterator[str]:
    bad = {name: o for name, o in outcomes.items() if o.verdict not in ("green", "skipped")}
    green = sum(o.verdict == "green" for o in outcomes.values())
    skipped = [f"{name} ({o.words})" for name, o in outcomes.items() if o.verdict == "skipped"]
    yield f"# {report['title']}"
    verdict = (
        f"{len(bad)} stages did not end well: {', '.join(bad)}"
        if bad
        else "Every stage that ran is green"
    )
    yield f"**{verdict}.** {green} green{'; skipped: ' + ', '.join(skipped) if skipped else ''}."
    differing = [
        f"- {f['what']}: found {f['found']}, plans assume {f['assumed']}"
        for f in report["machine"]
        if differs(f)
    ]
    if differing:
        yield "This machine differs from what the plans assume:"
        yield "\n".join(differing)
    mark = times_mark(report["machine"])
    if mark:
        yield f"**{mark}.**"
    if bad:
        yield "## What failed"
        yield "\n".join(f"- {name}: {o}. Log: {name}.log" for name, o in bad.items())
    if report["speed"]:
        yield f"## Steps, measured beside modeled{' (' + mark + ')' if mark else ''}"
        header = (
            "recipe",
            "users",
            "prompt",
            "first token ms",
            "step ms",
            "modeled ms",
            "miss",
            "tokens/s/user",
            "of DRAM",
        )
        yield markdown(header, [_speed(row) for row in report["speed"]])
    if report["server"]:
        yield f"## Server{' (' + mark + ')' if mark else ''}"
        header = ("tokens in", "tokens out", "users", "first token ms", "tokens/s/user", "tokens/s")
        yield markdown(header, [_server(row) for row in report["server"]])
    if report["ops"]:
        yield f"## Operations, measured beside modeled{' (' + mark + ')' if mark else ''}"
        yield markdown(
            ("op", "error", "gain", "equal", "us", "modeled us", "miss"), _ops(report["ops"])
        )
        yield f"The {SHOWN} longest; report.json has all. Refused or without values: {_refused(report['ops'])}."
        sums = [row for row in report["ops"] if COLLECTIVE_OF_A_STEP.match(row["device_op"] or "")]
        if sums:
            yield "Collectives of 32 rows, the plan's and the alternatives:"
            yield "\n".join(
                f"- {row['device_op'].split(';')[0]}: {row['us'] or math.nan:.1f} us"
                for row in sums
            )
        faster = list(_faster(report["ops"]))
        yield "Settings that were faster than the plan's by 5 % or more:"
        yield "\n".join(f"- {each}" for each in faster) or "none"


def _server(row: dict[str, Any]) -> tuple[str, ...]:
    """Of a file that vllm bench serve writes."""
    first, step = row["mean_ttft_ms"], row["mean_tpot_ms"]
    case = (
        f"{row['total_input_tokens'] // row['completed']}",
        f"{row['total_output_tokens'] // row['completed']}",
    )
    return (
        *case,
        f"{row['max_concurrency']}",
        f"{first:.0f}",
        f"{1e3 / step:.1f}",
        f"{row['output_throughput']:.0f}",
    )


def differs(fact: dict[str, Any]) -> bool:
    return fact["assumed"] is not None and fact["found"] != fact["assumed"]


def times_mark(machine: list[dict[str, Any]]) -> Optional[str]:
    """What stands beside times that are not silicon's."""
    below = next((fact["found"] for fact in machine if fact["what"] == "below ttnn"), "silicon")
    return None if below == "silicon" else f"Times are of a {below} and say nothing about hardware"


def _speed(row: dict[str, Any]) -> tuple[str, ...]:
    case = row["recipe"], f"{row['users']}", f"{row['prompt']}"
    if "refused" in row:
        return (*case, f"refused: {row['refused']}", "", "", "", "", "")
    step, modeled = row["step_ms"], row.get("modeled_ms")
    beside = (f"{modeled:.1f}", miss(modeled, step)) if modeled else ("", "")
    return (
        *case,
        f"{row['first_token_ms']:.1f}",
        f"{step:.2f}",
        *beside,
        f"{1e3 / step:.1f}",
        f"{row['share_of_dram']:.0%}",
    )


def miss(modeled: float, measured: float) -> str:
    return f"{modeled / measured - 1:+.0%}"


def _ops(rows: list[dict[str, Any]]) -> Iterator[tuple[str, ...]]:
    timed = [row for row in rows if (row["us"] or 0) > 0 and "setting" not in row]
    for row in sorted(timed, key=lambda row: -row["us"])[:SHOWN]:
        value = (
            (f"{row['error']:.1e}", f"{row['gain']:.4f}", f"{row['equal']:.1%}")
            if row["error"] is not None
            else ("",) * 3
        )
        modeled = row["modeled_us"]
        beside = (f"{modeled:.1f}", miss(modeled, row["us"])) if modeled else ("", "")
        yield (row["shown"], *value, f"{row['us']:.1f}", *beside)


def _refused(rows: list[dict[str, Any]]) -> str:
    found = [
        row["shown"]
        for row in rows
        if "setting" not in row and (row["failed"] or row["error"] is None)
    ]
    return ", ".join(found) or "none"


def _faster(rows: list[dict[str, Any]]) -> Iterator[str]:
    """The fastest other setting of each operation."""
    others = defaultdict(list)
    for row in rows:
        if "setting" in row and (row["us"] or 0) > 0:
            others[row["of"]].append(row)
    for of, found in others.items():
        best, plan = min(found, key=lambda row: row["us"]), rows[of]["us"]
        if plan is not None and best["us"] < 0.95 * plan:
            yield f"{rows[of]['shown']} {best['setting']}: {best['us']:.1f} instead of {plan:.1f} us"
