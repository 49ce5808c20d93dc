"""Script for the picture of the live page in docs/lab.md: serves digits-mlp once seven runs are finished.

python tools/live_picture.py [PICTURE]    needs Chromium, and three minutes
"""

import pathlib
import shutil
import subprocess
import sys
import tempfile
import time

from contdrop.lab.store.results import collect_all
from contdrop.lab.store.writer import Store

PICTURE = pathlib.Path(__file__).parents[1] / "docs" / "images" / "live.png"
CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome") or "chromium"
CONTDROP = [sys.executable, "-m", "contdrop.cli"]
OPTIONS = ["--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--window-size=1000,985"]
RUNS = 7


def runs_done(store: pathlib.Path) -> int:
    if not store.exists():
        return 0
    with Store(store) as opened, opened.snapshot():
        return min((len(results.complete_runs()) for results in collect_all(opened)), default=0)


def main() -> None:
    picture = pathlib.Path(sys.argv[1]).resolve() if len(sys.argv) > 1 else PICTURE
    with tempfile.TemporaryDirectory() as directory:
        store = pathlib.Path(directory) / "runs.db"
        methods = ["--methods", "none,bernoulli,uniform,gaussian", "--workers", "1"]
        running = subprocess.Popen([*CONTDROP, "run", "digits-mlp", "--store", str(store), *methods])
        serving = None
        try:
            while runs_done(store) < RUNS and running.poll() is None:
                time.sleep(0.5)
            command = [*CONTDROP, "serve", "--store", str(store), "--port", "0"]
            serving = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
            address = next(word for word in serving.stdout.readline().split() if word.startswith("http"))
            shot = [f"--screenshot={picture}", f"--user-data-dir={directory}/profile", address]
            subprocess.run([CHROMIUM, *OPTIONS, *shot], check=True, timeout=60)
        finally:
            for process in (running, serving):
                if process is not None:
                    process.terminate()
                    process.wait()


if __name__ == "__main__":
    main()
