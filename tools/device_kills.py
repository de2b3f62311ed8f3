"""Kill devices and the server with its gateway at random points of a run, in real processes:
`python tools/device_kills.py --points 100`.

The run of three devices has to end with the head that it has without a gateway. Exit code 1 if it has not."""

from __future__ import annotations

import argparse
import os
import random
import sys
import tempfile
import time
from collections import Counter
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
    with tempfile.TemporaryDirectory() as folder:
        rounds = 40 * given.points  # a round takes milliseconds, a server seconds to come back
        bad, took = wrong(Path(folder), rounds, kills, tell)
    victims = Counter("server" if kill.victim == SERVER else "device" for kill in kills[:took])
    print(f"{rounds} rounds, {took} killed {dict(victims)}, wrong: {len(bad)}", *bad, sep="\n")
    return bool(bad) or took < given.points


if __name__ == "__main__":
    raise SystemExit(main())
