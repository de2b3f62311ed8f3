"""A tab of a headless Chromium as a device, until the run has ended: python bench/network/tab.py TICKET ROWS.csv"""

from __future__ import annotations

import shutil
import sys
import time

from playwright.sync_api import Error, Page, expect, sync_playwright

SECONDS = 120_000


def _open(page: Page, ticket: str) -> None:
    """Once the gateway listens."""
    end = time.monotonic() + SECONDS / 1000
    while True:
        try:
            page.goto(ticket)
            return
        except Error:
            if time.monotonic() > end:
                raise
            time.sleep(0.2)


def main(ticket: str, rows: str) -> None:
    program = shutil.which("chromium")
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=program, args=["--no-sandbox", "--disable-gpu"])
        page = browser.new_context(ignore_https_errors=True).new_page()
        _open(page, ticket)
        page.get_by_role("button", name="Take part").click()
        page.locator("#data").wait_for()
        page.set_input_files("#csv", rows)
        expect(page.locator("#count")).to_contain_text("64 rows")
        page.get_by_role("button", name="Start training").click()
        expect(page.locator("#state")).to_contain_text("The run has ended", timeout=SECONDS)
        browser.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
