"""golden-mesh cases: a pytest file of the distinct operations of a program, from its record.

Each operation is a test with its shapes and configs. Inputs are drawn by a seed with the record's scale; integers are
the record's own. Expected values are samples of what the golden mesh computes of these inputs. The file needs torch and
ttnn only.
"""

import sys
from pathlib import Path
from typing import Any, Iterator, Optional

import torch

from golden_mesh.errors import GoldenError, GoldenMeshError
from golden_mesh.outputs import signed, write_whole
from golden_mesh.replay import PLACES, load, opened
from golden_mesh.replay.kinds import call, code, operation

INTEGERS = 4096  # of a tensor that a case holds
TILE = 32
FEW = 4  # distinct values, as a mask has: drawn from these
TEMPLATE = Path(__file__).with_name("cases_template.py")


def drawn(tensor: dict[str, Any], seed: int) -> str:
    """The call of the template's `put` that makes a tensor like the recorded one. ValueError: too many integers."""
    values, how = tensor["values"], [tensor["shape"], seed]
    how = [repr(each) for each in how] + [code(tensor[key]) for key in ("dtype", "layout", "memory_config")]
    if values is None:
        return f"put(device, {', '.join(how)}, empty=True)"
    whole = torch.stack(values) if isinstance(values, list) else values
    if isinstance(values, list):
        how.append("replicas=False")
    if not whole.is_floating_point():
        if whole.numel() > INTEGERS:
            raise ValueError(f"an input of {whole.numel():,} integers")
        return f"put(device, {', '.join(how)}, values={whole.flatten().tolist()})"
    finite = whole[whole.isfinite() & (whole.abs() < 1e9)].double()
    few = whole[:1].unique() if whole.numel() > 1 << 20 else whole.unique()
    tile = repeated_tile(whole) if 1 < len(few) <= FEW else None
    if tile is not None:
        how.append(f"tile=[{', '.join(map(code, tile.flatten().tolist()))}]")
    elif len(few) <= FEW and not few.isnan().any():
        how.append(f"values_of=[{', '.join(code(value) for value in few.tolist())}]")
    elif len(finite):
        how.append(f"scale={finite.std(correction=0).item():.3g}")
        mean = finite.mean().item()
        if (finite >= 0).all():
            how.append("positive=True")
        elif abs(mean) > 0.1 * finite.std(correction=0).item():
            how.append(f"shift={mean:.3g}")
    if tensor.get("padding") is not None:
        how.append(f"padding={code(tensor['padding'])}")
    return f"put(device, {', '.join(how)})"


def repeated_tile(x: torch.Tensor) -> Optional[torch.Tensor]:
    """The 32 x 32 values that `x` repeats, as a rotation's matrix does, or None."""
    if x.dim() < 2 or any(size % TILE for size in x.shape[-2:]):
        return None
    tiles = x.reshape(-1, TILE, x.shape[-1] // TILE, TILE)
    return tiles[0, :, 0] if (tiles == tiles[:1, :, :1]).all() else None


def body(op: dict[str, Any], seed: int) -> list[str]:
    """The lines of an operation's test. `check` takes what it returns and writes, in order."""
    operation(op["op"])  # Refused: the name would run as Python
    lines = [f"t{i} = {drawn(tensor, seed + i)}" for i, tensor in enumerate(op["tensors"])]
    lines.append(f"results = listed({call(op)})")
    count = 1 if op["op"] in PLACES else len(op["returned"])
    lines += [f"check(results[{i}], EXPECTED)" for i in range(count) if op["returned"][i]["values"] is not None]
    return lines + [f"check(t{i}, EXPECTED)" for i in op["written"]]


def write(record: Path, file: Path, program: str) -> Iterator[str]:
    """Write the pytest file of a record. Yields what could not be a case, and why."""
    kept = load(record)
    template = TEMPLATE.read_text().replace("PROGRAM", program).replace('"SYSTEM"', kept["system"] or "golden mesh")
    template = template.replace("MESH, RING = (1, 1), False", f"MESH, RING = {tuple(kept['mesh'])}, {kept['ring']}")
    names: dict[str, Any] = {}
    exec(template, names)  # noqa: S102
    tests = []
    with opened(kept) as device:
        for number, op in enumerate(kept["ops"], 1):
            name = f"test_{number:03}_{op['op'].rpartition('.')[2]}"
            try:
                lines = filled(body(op, 1000 * number), names | {"device": device})
            except (GoldenError, RuntimeError, TypeError, ValueError, AttributeError) as error:
                yield f"no case: {op['op']}: {str(error).splitlines()[0][:160]}"
                continue
            tests.append("\n    ".join((f"\n\ndef {name}(device):", *lines)) + "\n")
    write_whole(file, lambda part: part.write_bytes(signed((template + "".join(tests)).encode())))
    yield f"{len(tests)} operations in {file}"


def filled(lines: list[str], names: dict[str, Any]) -> list[str]:
    """The lines with the values that the golden mesh computes. ValueError: it knows none."""
    found: list[Optional[list[float]]] = []

    def check(tensor, expected) -> None:
        try:
            found.append(names["samples"](tensor))
        except GoldenError:  # memory that the operation does not write
            found.append(None)

    exec("\n".join(lines), names | {"check": check, "EXPECTED": None})  # noqa: S102
    values, whole = iter(found), []
    for line in lines:
        if "EXPECTED" in line:
            value = next(values)
            line = line.replace("EXPECTED", f"[{', '.join(map(code, value))}]") if value is not None else ""
        whole += [line] if line else []
    if not any(value is not None for value in found):
        raise ValueError("no value is known")
    return whole


if __name__ == "__main__":
    try:
        for line in write(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3]):
            print(line)
    except GoldenMeshError as error:
        sys.exit(f"error: {error}")
