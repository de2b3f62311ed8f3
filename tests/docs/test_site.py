"""The documentation as files: nothing is fetched from elsewhere. (`make docs` builds it; here its configuration.)"""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def test_the_worker_of_the_search_is_bundled_with_its_licence():
    """Without it Material's offline plugin loads it from a public server, and files opened offline have no search."""
    configuration = (ROOT / "mkdocs.yml").read_text()
    script = ROOT / "docs" / "assets" / "iframe-worker.js"
    assert f"polyfills: [assets/{script.name}]" in configuration
    assert "Permission is hereby granted" in script.read_text()
