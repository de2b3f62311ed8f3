"""The picture of the report in the README: `python tools/report_picture.py runs/demo/report.html docs/figures/demo.png`

The top of a page as Chromium shows it; `--dark` for the dark one. Needs playwright and Chromium.
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

from playwright.sync_api import sync_playwright

WIDTH = 1180


def main(page: Path, picture: Path, scheme: str) -> None:
    program = shutil.which("chromium") or shutil.which("google-chrome")
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=program, args=["--no-sandbox"])
        tab = browser.new_page(viewport={"width": WIDTH, "height": 1000}, color_scheme=scheme)  # type: ignore[arg-type]
        tab.goto(page.resolve().as_uri())
        box = tab.locator("figure.story").bounding_box()
        assert box is not None
        tab.set_viewport_size({"width": WIDTH, "height": round(box["y"] + box["height"]) + 24})
        tab.screenshot(path=str(picture))
        browser.close()


if __name__ == "__main__":
    names = [name for name in sys.argv[1:] if name != "--dark"]
    main(Path(names[0]), Path(names[1]), "dark" if "--dark" in sys.argv else "light")
