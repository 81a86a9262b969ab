#!/usr/bin/env python
"""Measure a page of `vitkit export --to page` in a browser, and compare its answers with `vitkit predict`'s.

    vitkit export runs/mine bundle --format onnx
    vitkit export bundle mine.html --to page
    taskset -c 0 python -m benchmarks.page mine.html bundle photos/ --browser firefox

Run from the repository's root; taskset leaves browser and script a single core. Every photo of which the page
and the bundle name another class is listed with its margin: the difference of the bundle's two logits of
these classes, in standard deviations of its logits.
"""

import argparse
import json
import statistics
import time
from pathlib import Path
from typing import Any

from tests.helpers.browsers import SOFTWARE_GPU, Browser

AT_ONCE = 20
"""Photos that are handed to the page at a time."""
ANSWERS = """[...document.querySelectorAll("#answers > li")].map(item =>
    [item.querySelector(".name").textContent, item.result || null])"""
CHECKED = "document.getElementById('state').className !== 'busy'"


def ask_page(browser: Browser, page: Path, photos: list[Path]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Open a page, hand it the photos, and return what was measured and the answers by file name."""
    start = time.monotonic()
    browser.open(page.resolve().as_uri())
    browser.wait_for(f"document.getElementById('state') && {CHECKED}", 900)
    ready = time.monotonic() - start
    measured: dict[str, Any] = {
        "state": browser.evaluate("document.getElementById('state').textContent"),
        "levels": browser.evaluate("document.getElementById('levels').textContent.replace(/\\s+/g, ' ')"),
        "seconds until ready": round(ready, 2),
    }
    answers = dict[str, Any]()
    for first in range(0, len(photos), AT_ONCE):
        part = photos[first : first + AT_ONCE]
        browser.evaluate("document.getElementById('answers').replaceChildren()")
        browser.set_files("files", part)
        done = f"document.querySelectorAll('#answers > li:not([aria-busy])').length === {len(part)}"
        browser.wait_for(done, 600)
        answers |= dict(browser.evaluate(ANSWERS))
    seconds = [answer["seconds"] for answer in answers.values() if answer is not None]
    measured["seconds an answer"] = {
        "median": round(statistics.median(seconds), 3),
        "largest": round(max(seconds), 3),
    }
    measured["requests"] = [
        address[:80] for address in browser.requests if not address.startswith(("blob:", "data:", "file:"))
    ]
    return measured, answers


def compare(bundle: Path, photos: list[Path], answers: dict[str, Any]) -> dict[str, Any]:
    """Compare the answers of a page with those of its bundle, computed here."""
    from vitkit.jobs.predict import Predictor

    predictor, others, same = Predictor(bundle), list[dict[str, Any]](), 0
    for photo in photos:
        own, answer = predictor(photo, len(predictor.class_names)), answers[photo.name]
        names = "none of these" if own.refused else own[0].name
        given = None
        if answer is not None:
            given = "none of these" if answer["refused"] else answer["guesses"][0]["name"]
        if names == given:
            same += 1
            continue
        by_name = {guess.name: guess.probability for guess in own}
        margin = {"typicality": own.typicality, "of the page": answer and answer["typicality"]}
        if given in by_name and names in by_name:
            margin = {"probabilities of the bundle": [by_name[names], by_name[given]]}
        others.append({"photo": photo.name, "bundle": names, "page": given, **margin})
    return {"photos": len(photos), "same answers": same, "others": others}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("page", type=Path)
    parser.add_argument("bundle", type=Path)
    parser.add_argument("photos", type=Path, help="folder")
    parser.add_argument("--browser", choices=("chromium", "firefox"), default="chromium")
    parser.add_argument("--software-gpu", action="store_true", help="WebGPU in Chromium, by software")
    parser.add_argument("--count", type=int, default=1000, help="most photos")
    options = parser.parse_args()
    photos = sorted(path for path in options.photos.iterdir() if path.is_file())[: options.count]
    with Browser(options.browser, more=SOFTWARE_GPU if options.software_gpu else ()) as browser:
        measured, answers = ask_page(browser, options.page, photos)
    print(json.dumps({**measured, **compare(options.bundle, photos, answers)}, indent=2))


if __name__ == "__main__":
    main()
