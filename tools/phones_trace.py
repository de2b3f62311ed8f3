"""The trace of phones that comes with fedzero (`[clock] trace = "phones"`), made of public figures.

    python tools/phones_trace.py      writes src/fedzero/data/phones.csv

Milliseconds of one inference of MobileNet v1 on the CPU, with the fastest number of threads that is listed: column
`avg` of `mobilenet` in Tencent/ncnn, benchmark/README.md (commit a4d2ea1d4422c9e849f166fd7a4aefb52f942f6a, 2026-07-22),
sections named after the processors. All phones are equally frequent: the figures say nothing about sales. factor: the
time divided by the median of the phones.
"""

from __future__ import annotations

import csv
import statistics
from pathlib import Path

MILLISECONDS = {
    "MediaTek Dimensity 9300": 3.15,
    "Qualcomm Snapdragon 8 Gen 2": 4.21,
    "Qualcomm Snapdragon 855+": 5.38,
    "Qualcomm Snapdragon 888": 9.64,
    "Qualcomm Snapdragon 765G": 14.20,
    "Qualcomm Snapdragon 821": 27.88,
    "Qualcomm Snapdragon 675": 31.80,
    "Qualcomm Snapdragon 660": 32.33,
    "Qualcomm Snapdragon 810": 34.44,
    "Kirin 970": 35.93,
    "Qualcomm Snapdragon 835": 37.32,
    "Apple A7": 79.44,
    "Qualcomm Snapdragon 410": 90.03,
}
PLACE = Path(__file__).parent.parent / "src" / "fedzero" / "data" / "phones.csv"


def main() -> None:
    median = statistics.median(MILLISECONDS.values())
    with PLACE.open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["device", "share", "factor"])
        writer.writerows([name, 1, round(ms / median, 4)] for name, ms in MILLISECONDS.items())


if __name__ == "__main__":
    main()
