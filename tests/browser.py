"""A page in headless Chromium, for the tests of pages; they are skipped where none is installed."""

import json
import re
import shutil
import subprocess
from html import unescape
from pathlib import Path

import pytest

CHECKS = Path(__file__).with_name("browser.js").read_text(encoding="utf-8")
# before the page's own scripts: whatever goes wrong is kept
CATCH = """<script>
window.wrong = [];
window.addEventListener("error", (event) => wrong.push(event.message));
console.error = (...words) => wrong.push(words.join(" "));
</script>"""


def ask(html, folder, width, dark=False, script="null"):
    """What the script's last expression (it may wait) and the page itself say in a browser.

    Returns the answer, with the lowest contrast, the widths needed and given, and what went wrong.
    """
    names = ("chromium", "chromium-browser", "google-chrome")
    browser = next(filter(None, map(shutil.which, names)), None)
    if browser is None:
        pytest.skip("no Chromium is installed, so no page is looked at")
    asked = f"""<script>{CHECKS}
    (async () => {{
      const answer = await (async () => {{ {script} }})();
      const width = [document.documentElement.scrollWidth, window.innerWidth];
      const dark = lightness(behind(document.body)) < 0.1;
      const said = {{ answer, width, dark, contrast: contrasts(), wrong }};
      parent.postMessage(JSON.stringify(said), "*");
    }})();
    </script></body>"""
    html = html.replace("<head>", f"<head>{CATCH}", 1)
    html = asked.join(html.rsplit("</body>", 1))
    (folder / "page.html").write_text(html, encoding="utf-8")
    # in a frame, because a window of Chromium is at least 500 pixels wide
    outer = folder / "outer.html"
    outer.write_text(
        f"""<iframe src="page.html" style="width: {width}px; height: 1600px; border: 0"></iframe>
        <pre></pre><script>window.onmessage = (event) => {{
        document.querySelector("pre").textContent = event.data; }};</script>""",
        encoding="utf-8",
    )
    command = [
        browser, "--headless", "--no-sandbox", "--disable-gpu", "--no-first-run",
        "--disable-background-networking", "--disable-component-update", "--disable-sync",
        f"--user-data-dir={folder / 'profile'}", "--window-size=1200,1700",
        "--virtual-time-budget=200000", "--dump-dom",
    ]  # fmt: skip
    if dark:
        command.append("--blink-settings=preferredColorScheme=0")
    done = subprocess.run([*command, outer.as_uri()], check=True, timeout=120, capture_output=True)
    said = re.search("<pre>(.+?)</pre>", done.stdout.decode(), re.DOTALL)
    return json.loads(unescape(said[1]))


def check_look(said, width, dark):
    """No error in the console, no sideways scroll, and letters that can be read."""
    needed, given = said["width"]
    assert said["wrong"] == []
    assert needed <= given == width
    assert said["dark"] == dark
    lowest, words = said["contrast"]
    assert lowest >= 4.5, words
