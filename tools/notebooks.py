"""Script that runs the notebooks of examples/ and saves the outputs of their cells.

python tools/notebooks.py [NAME ...]    # needs nbclient and ipykernel
"""

import pathlib
import sys
import tempfile

import nbclient
import nbformat

EXAMPLES = pathlib.Path(__file__).parents[1] / "examples"


def run(path: pathlib.Path) -> None:
    notebook = nbformat.read(path, as_version=4)
    with tempfile.TemporaryDirectory() as directory:
        resources = {"metadata": {"path": directory}}
        nbclient.NotebookClient(notebook, timeout=600, resources=resources, record_timing=False).execute()
        if directory in nbformat.writes(notebook):
            raise SystemExit(f"{path.name}: expected no paths of this machine in what cells show; found {directory}")
    notebook.metadata.language_info = {"name": "python"}  # which Python it was does not matter
    for cell in (cell for cell in notebook.cells if cell.cell_type == "code"):
        # Progress, line after line, is for those who wait.
        cell.outputs = [output for output in cell.outputs if output.get("name") != "stderr"]
    nbformat.write(notebook, path)


def main() -> None:
    for path in sorted(EXAMPLES.glob("*.ipynb")):
        if path.stem in sys.argv[1:] or not sys.argv[1:]:
            print(path.name, flush=True)
            run(path)


if __name__ == "__main__":
    main()
