"""Kill devices and the server with its gateway at random points of a run, in real processes:
`python tools/device_kills.py --points 100`.

The run of three devices has to end with the head that it has without a gateway. Exit code 1 if it has not."""

from __future__ import annotations

import argparse
import os
import random
import statistics
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).parents[1]
for each in (ROOT / "tests", ROOT / "clients" / "python"):
    sys.path.insert(0, str(each))
MOST_ROUNDS, MOST_WAIT = 4, 0.3
"""Between two kills: rounds on the ledger, and seconds after them."""


def main() -> int:
    from devices.killed_devices import SERVER, Kill, wrong

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--points", type=int, default=100)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--keep", type=Path, help="A new folder for the run, and for what server and devices said.")
    given = parser.parse_args()
    chance, began = random.Random(given.seed), time.monotonic()
    kills = [
        Kill(
            chance.randint(1, MOST_ROUNDS),
            chance.choice([0, 1, 2, SERVER, SERVER, SERVER]),
            MOST_WAIT * chance.random(),
        )
        for _ in range(given.points)
    ]

    def tell(done: int) -> None:
        if done % 10 == 0:
            print(f"{done} killed, {time.monotonic() - began:.0f} s", flush=True)

    os.environ["PYTHONPATH"] = os.pathsep.join([str(ROOT / "src"), os.environ.get("PYTHONPATH", "")])
    with tempfile.TemporaryDirectory() as other:
        folder = given.keep or Path(other)
        folder.mkdir(exist_ok=True)
        rounds = 40 * given.points  # a round takes milliseconds, a server seconds to come back
        bad, took = wrong(folder, rounds, kills, tell)
    print(f"{rounds} rounds, {len(took)} killed, wrong: {len(bad)}", *bad, sep="\n")
    for name, of in (("server", [SERVER]), ("device", range(SERVER))):
        if found := sorted(took[i] for i in range(len(took)) if kills[i].victim in of):
            print(
                f"{name}: {len(found)}, until the next round {statistics.median(found):.1f} s, at most {found[-1]:.1f}"
            )
    return bool(bad) or len(took) < given.points


if __name__ == "__main__":
    raise SystemExit(main())
