"""Where something is missing, the rest works, and the lab says what it needs.

Windows is played on other systems by taking away what it lacks.

Other packages are imported before the system pretends to be another, because they would look for Windows' own modules.
"""

import pathlib
import subprocess
import sys

import pytest
import torch

WINDOWS = """
import os, signal, sys, {packages}
sys.platform = "win32"
sys.modules.update(dict.fromkeys(("fcntl", "grp", "pwd", "resource", "termios")))
for module, names in {{
    os: "RTLD_GLOBAL RTLD_LOCAL RTLD_NOLOAD RTLD_NOW fork getloadavg geteuid getuid killpg register_at_fork "
        "sched_getaffinity setsid statvfs uname",
    signal: "SIGHUP SIGKILL SIGUSR1 SIG_BLOCK SIG_SETMASK pthread_sigmask",
}}.items():
    for name in names.split():
        vars(module).pop(name, None)

from contdrop.kernels.native import loader

loader.FILE = "none.so"
"""


def on_windows(code: str, packages: str, directory: pathlib.Path) -> subprocess.CompletedProcess:
    command = [sys.executable, "-W", "ignore::UserWarning", "-c", WINDOWS.format(packages=packages) + code]
    return subprocess.run(command, capture_output=True, text=True, check=False, cwd=directory)


def test_layers_and_theory_work_on_windows(tmp_path):
    code = """
import contdrop as cd
model = torch.nn.Sequential(
    torch.nn.Linear(4, 5), cd.GaussianDropout(0.3), torch.nn.Dropout(0.5), cd.DropConnectLinear(5, 3),
    cd.FastDropoutLinear(3, 2, law=cd.Uniform()),
)
cd.swap_dropout(model, "uniform")
model(torch.ones(2, 4)).sum().backward()
print(cd.backend(), cd.mc_predict(model, torch.ones(2, 4), samples=3).mean.shape)
moments = cd.theory.propagation.moments(torch.nn.Sequential(cd.UniformDropout()), torch.ones(1, 1))
print(round(moments.variance.item(), 4))
"""
    # With an older torch the package imports the compiler, which asks for what only a real Windows has.
    packages = "torch" if torch.__version__ >= "2.13" else "torch._dynamo"
    result = on_windows(code, packages, tmp_path)
    assert (result.stdout, result.stderr) == ("reference torch.Size([2, 2])\n0.3333\n", "")


def test_the_lab_says_in_one_line_what_windows_lacks(tmp_path):
    packages = "torch, numpy, scipy.stats, sqlite3, typer.main, typer.rich_utils, sklearn.datasets"
    for package in packages.split(", "):
        pytest.importorskip(package)
    code = """
from contdrop.cli import main
for command in ("list", "compare --init study.py", "compare study.py", "run digits-mlp"):
    sys.argv = ["contdrop", *command.split()]
    try:
        main()
    except SystemExit as error:
        print(command, error.code, flush=True)
"""
    result = on_windows(code, packages, tmp_path)
    codes = [line for line in result.stdout.splitlines() if line[-2:] in (" 0", " 2")]
    assert codes == ["list 0", "compare --init study.py 0", "compare study.py 2", "run digits-mlp 2"], result.stderr
    message = (
        "contdrop: training in the lab needs POSIX file locks, which this system does not have; use Linux, macOS or "
        "WSL (status, export, report and check work here)\n"
    )
    assert result.stderr == 2 * message


def test_the_lab_says_in_one_line_which_package_it_needs(lab_packages):
    code = """
import sys
sys.modules["numpy"] = None
from contdrop import lab
try:
    lab.Study
except ModuleNotFoundError as error:
    print(error)
"""
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert result.stdout == 'contdrop.lab needs numpy, which is not installed; run: pip install "contdrop[lab]"\n'
