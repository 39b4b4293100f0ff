"""Random systems that are hard for float32 or for a grid of boxes, each against an Ewald sum, and
random sequences of operations on one solver or on two Contexts of one System.

    python -m tests.hostile --cases 10000 --seconds 500 --processes 8 --file hostile.jsonl
    python -m tests.hostile --sequences --file sequences.jsonl

A line of the file is a case; what is there already is not computed again, so that a search goes on
where it was left. It ends with 1 if a tolerance was missed without a word.
"""

import argparse
import json
import multiprocessing
import sys
import time
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path

from tests.hostile_sequences import SEQUENCES, judge_sequence
from tests.hostile_systems import KINDS, TOLERANCES, Verdict, judge, system


def verdict(kind: str, seed: int, tolerance: float, backend: str = "cpu") -> Verdict:
    """The verdict on a system or a sequence of a kind."""
    if kind in SEQUENCES:
        return judge_sequence(kind, seed, tolerance, backend)
    return judge(system(kind, seed), tolerance, backend)


def row(seed: int, backend: str, kinds: list[str], case: int) -> tuple:
    """Number, kind, tolerance and verdict of a case."""
    kind = kinds[case % len(kinds)]
    tolerance = TOLERANCES[case // len(kinds) % len(TOLERANCES)]
    found = verdict(kind, seed + case, tolerance, backend)
    return case, kind, tolerance, found.outcome, found.ratio


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--cases", type=int, default=10_000)
    parser.add_argument("--seconds", type=float, default=500.0, help="of this piece")
    parser.add_argument("--seed", type=int, default=2026)
    parser.add_argument("--backend", default="cpu", choices=("cpu", "cuda"))
    parser.add_argument(
        "--sequences", action="store_true", help="sequences of operations instead of systems"
    )
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--file", type=Path, default=Path("hostile.jsonl"))
    args = parser.parse_args()
    kinds = list(SEQUENCES if args.sequences else KINDS)
    done = args.file.read_text().splitlines() if args.file.exists() else []
    end = time.monotonic() + args.seconds
    spawn = multiprocessing.get_context("spawn")  # a forked process has no threads of Numba
    compute = partial(row, args.seed, args.backend, kinds)
    with args.file.open("a") as file, ProcessPoolExecutor(args.processes, spawn) as pool:
        while len(done) < args.cases and time.monotonic() < end:
            piece = range(len(done), min(len(done) + 8 * args.processes, args.cases))
            for found in pool.map(compute, piece):
                done.append(json.dumps(found))
                print(done[-1], file=file, flush=True)
    rows = [json.loads(line) for line in done]
    outcomes = Counter((kind, outcome) for _, kind, _, outcome, _ in rows)
    for kind in kinds:
        numbers = {name: outcomes[kind, name] for name in ("kept", "warned", "missed")}
        print(f"{kind:22}", *(f"{number:6} {name}" for name, number in numbers.items()))
    for case, kind, tolerance, outcome, ratio in rows:
        if outcome == "missed":
            print(f"case {case}: {kind} at {tolerance:g}, {ratio:.3g} times the tolerance")
    print(f"{len(rows)} of {args.cases} cases")
    return int(any(row[3] == "missed" for row in rows))


if __name__ == "__main__":
    sys.exit(main())
