"""A session in a terminal, recorded: commands run one after another in a pseudo-terminal, output with its times kept.

python tools/terminal_session.py docs/figures/session.json "fedzero run demo …" "fedzero report …"
"""

from __future__ import annotations

import fcntl
import json
import os
import pty
import select
import struct
import subprocess
import sys
import termios
import time
from pathlib import Path
from typing import Any

COLUMNS, ROWS = 88, 21
REDRAWN = "\r\x1b[2K"
"""How a line is drawn again."""
SHORTEST = 4.0
"""A line that is drawn again sooner than after so many seconds is not kept."""


def recorded(command: str) -> dict[str, Any]:
    """What a command wrote: pairs (seconds since its start, text), and its exit code."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, COLUMNS, 0, 0))
    environment = {**os.environ, "TERM": "xterm-256color", "COLUMNS": str(COLUMNS), "LINES": str(ROWS)}
    began = time.monotonic()
    process = subprocess.Popen(command, shell=True, stdin=theirs, stdout=theirs, stderr=theirs, env=environment)
    os.close(theirs)
    output: list[tuple[float, str]] = []
    pending = b""
    while True:
        ready, _, _ = select.select([ours], [], [], 1.0)
        try:
            chunk = os.read(ours, 65536) if ready else b""
        except OSError:  # Linux says so when the last writer has closed its end
            break
        if not chunk and process.poll() is not None:
            break
        pending += chunk
        text = pending.decode(errors="ignore")
        if text and text.encode() == pending:  # a letter of several bytes may have been cut
            output.append((round(time.monotonic() - began, 3), text))
            pending = b""
    os.close(ours)
    return {"command": command, "exit": process.wait(), "output": thinned(output)}


def thinned(output: list[tuple[float, str]]) -> list[tuple[float, str]]:
    """Without lines that were drawn again at once: the screens after them are the same."""
    kept: list[tuple[float, str]] = []
    for at, text in output:
        again = text.startswith(REDRAWN)
        if again and len(kept) > 1 and kept[-1][1].startswith(REDRAWN) and at - kept[-2][0] < SHORTEST:
            last = kept[-1][1].removeprefix(REDRAWN)
            if not any(control in last for control in "\r\n\x1b"):
                kept.pop()
        kept.append((at, text))
    return kept


def main(path: Path, commands: list[str]) -> None:
    session = {"columns": COLUMNS, "rows": ROWS, "commands": [recorded(command) for command in commands]}
    path.write_text(json.dumps(session, ensure_ascii=False, separators=(",", ":")) + "\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
