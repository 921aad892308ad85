"""A save that is killed by SIGKILL at any change to the file system leaves the last good checkpoint."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).with_name("checkpoint_killed_save.py")


def test_a_kill_at_any_point_leaves_the_last_good_checkpoint(tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, str(SCRIPT), str(tmp_path)], capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr
    reports = [json.loads(line) for line in done.stdout.splitlines()]
    for tag in ("first", "second"):  # the tag that exists, and a new one
        killed = [report for report in reports if report["tag"] == tag and report["killed"]]
        (whole,) = [report for report in reports if report["tag"] == tag and not report["killed"]]
        assert {"os.mkdir", "open", "os.fsync", "os.rename"} <= {report["where"] for report in killed}
        assert len(killed) > 15
        values = [report["value"] for report in killed]
        assert values == sorted(values), "once the new one is there it stays"
        assert set(values) <= {1.0, 2.0}
        assert values[0] == 1.0
        assert whole["value"] == 2.0
    assert all(report["next"] == 3.0 for report in reports)
    assert all(not name.endswith((".partial", ".old")) for report in reports for name in report["left"])
