"""Opens a page in Chromium, runs a script in it, and returns the script's answers.

The script is inserted into a copy of the page: error handlers at the beginning, questions at the end. The page writes
the answers as JSON into an element, which `--dump-dom` prints, so no network connection to the browser is needed.
"""

from __future__ import annotations

import html
import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

from tests.requirements import skip_or_fail

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
LIMIT_S = 120
FLAGS = (
    "--headless",
    "--no-sandbox",  # tests may run as root
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--hide-scrollbars",
    "--window-size=1300,900",
)
# CSP would say no to a request before it is made: then there is a violation to be seen, and no request.
WATCH = """<script>
window.saw = {errors: [], violations: []};
addEventListener("error", (event) => saw.errors.push(String(event.message || event.target)), true);
addEventListener("unhandledrejection", (event) => saw.errors.push(String(event.reason)));
addEventListener("securitypolicyviolation", (event) => saw.violations.push(event.blockedURI));
</script>"""
ASK = """<script>
addEventListener("load", () => {
  const answers = {};
  try { (%s)(answers); } catch (error) { saw.errors.push("asking: " + error.stack); }
  const told = document.createElement("pre");
  told.id = "answers";
  told.textContent = JSON.stringify({...saw, ...answers, requests: performance.getEntriesByType("resource").length});
  document.body.append(told);
});
</script>"""


def chromium() -> str:
    """Return the browser; skip where there is none, but never in continuous integration."""
    found = next((path for name in NAMES if (path := shutil.which(name))), None)
    if found is None:
        skip_or_fail("there is no Chromium: apt-get install chromium fonts-dejavu-core")
    return found


def look(page: Path, scratch: Path, questions: str, *flags: str) -> dict[str, Any]:
    """Return the object that `questions`, a function of JavaScript, fills in the page.

    Args:
        page: the file.
        scratch: a directory for the copy and for the browser's profile.
        questions: the source of the function.
        flags: more for the browser.
    """
    text = page.read_text(encoding="utf-8")
    text = text.replace("<head>", f"<head>{WATCH}", 1).replace("</body>", ASK % questions + "</body>", 1)
    copy = scratch / "asked.html"
    copy.write_text(text, encoding="utf-8")
    done = run(scratch, *flags, "--dump-dom", copy.as_uri())
    match = re.search(r'<pre id="answers">(.*?)</pre>', done.stdout, re.DOTALL)
    assert match, f"the page was not loaded: {done.returncode} {done.stderr[-2000:]}"
    answers: dict[str, Any] = json.loads(html.unescape(match[1]))
    return answers


def run(scratch: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run the browser with a profile of its own."""
    command = [chromium(), *FLAGS, f"--user-data-dir={scratch / 'profile'}", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, check=False)
