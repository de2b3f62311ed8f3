"""Event files of TensorBoard: all numbers of a step are one event, and the file is flushed after each write."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from pathlib import Path

from tensorboard.backend.event_processing.event_file_loader import EventFileLoader
from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.compat.proto.summary_pb2 import Summary, SummaryMetadata
from tensorboard.compat.proto.tensor_pb2 import TensorProto
from tensorboard.compat.proto.types_pb2 import DT_STRING
from tensorboard.summary.writer.record_writer import RecordWriter

from fedzero.callbacks import RunInfo
from fedzero.loggers.reporter import Point, Written
from fedzero.recipe.report import Report

SEEN, EVALUATED = "queries", "test/loss"
"""Tags that every round and every evaluation has."""


class Sink:
    """Folder: that of the table, or `tensorboard` in the folder of the run; in it one folder for each series."""

    def __init__(self, report: Report):
        self._folder = report.folder

    def open(self, run: RunInfo, series: str) -> Written:
        place = (Path(self._folder) if self._folder else run.folder / "tensorboard") / f"{run.name}-{series[:8]}"
        place.mkdir(parents=True, exist_ok=True)
        files = sorted(place.glob("events.out.tfevents.*"))
        written = _last_steps(files)
        path = place / f"events.out.tfevents.{_second_after(files):010d}.{os.getpid()}.{len(files)}"
        self._file = path.open("xb")
        self._records = RecordWriter(self._file)
        self._records.write(Event(wall_time=time.time(), file_version="brain.Event:2").SerializeToString())
        if not files:
            self._records.write(Event(wall_time=time.time(), summary=_config(run)).SerializeToString())
        self._file.flush()
        return written

    def write(self, points: Sequence[Point]) -> None:
        for point in points:
            values = [Summary.Value(tag=name, simple_value=value) for name, value in point.values.items()]
            event = Event(wall_time=point.at, step=point.step, summary=Summary(value=values))
            self._records.write(event.SerializeToString())
        self._file.flush()

    def page(self, path: Path) -> None:
        """TensorBoard shows no pages."""

    def close(self, complete: bool) -> None:
        self._file.close()


def _second_after(files: Sequence[Path]) -> int:
    """Unix time of a new file, later than those of `files`: TensorBoard reads a folder in the order of names, and of
    two processes that begin within a second the later one may have the smaller process id."""
    stamps = [name[3] for name in (file.name.split(".") for file in files) if len(name) > 3 and name[3].isdigit()]
    return max([int(time.time()), *(int(stamp) + 1 for stamp in stamps)])


def _config(run: RunInfo) -> Summary:
    """A table in Markdown, under Text."""
    lines = ["| key | value |", "|---|---|", *(f"| {key} | {value} |" for key, value in run.config.items())]
    tensor = TensorProto(dtype=DT_STRING, string_val=["\n".join(lines).encode()])
    metadata = SummaryMetadata(plugin_data=SummaryMetadata.PluginData(plugin_name="text"))
    return Summary(value=[Summary.Value(tag="config/text_summary", metadata=metadata, tensor=tensor)])


def _last_steps(files: Sequence[Path]) -> Written:
    """A file may end in the middle of an event, where a process was killed."""
    rounds = evaluations = -1
    for path in files:
        for event in EventFileLoader(str(path)).Load():
            tags = {value.tag for value in event.summary.value}
            rounds = max(rounds, event.step) if SEEN in tags else rounds
            evaluations = max(evaluations, event.step) if EVALUATED in tags else evaluations
    return Written(rounds, evaluations)
