"""How long a newcomer's first pipeline, from a webhook into a table, takes in the browser, if nobody hesitates.

    python -m bench newcomer

It is the browser test that clicks through the console from signing in, so the time is that of the pages and the node.
What is left of three minutes is for somebody to read, think and type.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path
from xml.etree import ElementTree

from bench.rig import report

TEST = (
    "tests/web/test_console_datasource.py"
    "::test_a_newcomer_makes_a_webhook_into_a_table_in_five_steps_and_nothing_runs_untested"
)
PROPERTY = ".//property[@name='newcomer_s']"


def measured() -> dict[str, float]:
    """Run the test, which notes its time. Without a browser it is skipped, and there is no figure."""
    with tempfile.TemporaryDirectory() as folder:
        noted = Path(folder) / "results.xml"
        options = ["-q", "-n", "0", "-o", "junit_family=xunit1", f"--junit-xml={noted}"]
        subprocess.run([sys.executable, "-m", "pytest", *options, TEST], check=True)
        found = ElementTree.parse(noted).find(PROPERTY)
    return {} if found is None else {"from signing in to a running pipeline, s": float(found.attrib["value"])}


def main() -> dict[str, float]:
    """Run and print."""
    return report("A newcomer's first pipeline (python -m bench newcomer)", measured())


if __name__ == "__main__":
    main()
