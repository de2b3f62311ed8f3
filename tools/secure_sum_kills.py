"""Kill one party of a secure sum at random steps, in real processes: `python tools/secure_sum_kills.py --points 200`.

Prints how the runs ended; exit code 1 if one is wrong."""

from __future__ import annotations

import argparse
import os
import random
import sys
import tempfile
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

HERE = str(Path(__file__).parents[1] / "tests" / "gatherings")
sys.path.insert(0, HERE)
os.environ["PYTHONPATH"] = os.pathsep.join([HERE, os.environ.get("PYTHONPATH", "")])  # of the processes that are forked


def main() -> int:
    from killed_parties import ROUNDS, SERVER, SITES, play, steps, summed, wrong

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--points", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--at-once", type=int, default=2)
    given = parser.parse_args()
    chance, began = random.Random(given.seed), time.monotonic()
    with tempfile.TemporaryDirectory() as place:
        whole = Path(place) / "whole"
        assert not play(whole) and not wrong(whole), "the undisturbed run is wrong"
        count = steps(whole)
        print("steps of an undisturbed run:", count, "clients in the sum:", summed(whole), flush=True)
        points = []
        for _ in range(given.points):
            victim = chance.choice([*SITES, SERVER])
            points.append((victim, chance.randrange(count[victim]), chance.choice(["before", "after"])))

        def one(number: int) -> tuple[list[str], bool, list[int], str]:
            folder = Path(place) / str(number)
            if why := play(folder, *points[number]):
                return [why], False, [], points[number][0]
            said = [f"{points[number]}: {each}" for each in wrong(folder)]
            return said, (folder / "burnt").exists(), summed(folder), points[number][0]

        bad, killed, rounds, victims = list[str](), 0, Counter[int](), Counter[str]()
        with ThreadPoolExecutor(given.at_once) as pool:
            for done, (said, burnt, sums, victim) in enumerate(pool.map(one, range(given.points)), 1):
                bad, killed = bad + said, killed + burnt
                rounds.update(sums)
                victims[victim] += burnt
                if said or done % 20 == 0:
                    print(done, said or "", f"{time.monotonic() - began:.0f} s", flush=True)
    print(f"{given.points} runs of {ROUNDS} rounds, {killed} killed: {dict(victims)}")
    print(f"rounds by clients in the sum: {dict(sorted(rounds.items()))}")
    print(f"wrong: {len(bad)}", *bad, sep="\n")
    return bool(bad)


if __name__ == "__main__":
    raise SystemExit(main())
