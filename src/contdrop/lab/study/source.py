"""Transfer of a study to another process: by name, by its file, or pickled.

Pickles pass between live processes of one invocation only; none is written to a file.
"""

from __future__ import annotations

import hashlib
import importlib.util
import pathlib
import pickle
import sys
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Literal

import cloudpickle

from ...errors import UserError, suggest
from ..extensions import find_studies
from .plan import StudyPlan
from .study import Study
from .user_errors import explained, is_users, printable_error


@dataclass(frozen=True)
class StudySource:
    """Origin of a study, from which another process loads it."""

    kind: Literal["catalogue", "file", "pickle"]
    name: str  # in the catalogue, or the file's absolute path
    content: bytes = b""  # the file's SHA-256, or the pickled study

    def load(self) -> Study:
        if self.kind in ("catalogue", "pickle"):
            is_published = self.kind == "catalogue"
            study: Study = find_studies(self.name)[0] if is_published else pickle.loads(self.content)
            return study
        path = pathlib.Path(self.name)
        if _digest(path) != self.content:
            raise UserError(f"{path} has changed since the command began; give the command again")
        return load_file(path)


def of_file(path: pathlib.Path) -> StudySource:
    return StudySource("file", str(path.resolve()), _digest(path))


def of_study(study: Study) -> StudySource:
    """Return the source of a study made in this process, whose functions may exist nowhere else."""
    try:
        return StudySource("pickle", study.name, cloudpickle.dumps(study))
    except Exception as error:
        raise UserError(
            f"study {study.name!r}: cannot be handed to another process ({printable_error(error)}); "
            "make files, locks and the like inside its functions, or use workers=0"
        ) from error


def by_value(study: Study, source: StudySource) -> StudySource:
    """Return the source of a study for a machine without the user's files, with all of their code."""
    if source.kind == "catalogue":
        return source
    imported = [module for name, module in list(sys.modules.items()) if getattr(module, "__name__", None) == name]
    own = [module for module in imported if is_users(getattr(module, "__file__", None) or "<frozen")]
    for module in own:
        cloudpickle.register_pickle_by_value(module)
    try:
        return of_study(study)
    finally:
        for module in own:
            cloudpickle.unregister_pickle_by_value(module)


@dataclass(frozen=True)
class StudySpec:
    """A study plan for another process: the study's source and all other fields."""

    source: StudySource
    settings: Mapping[str, Any]

    @classmethod
    def of(cls, protocol: StudyPlan, source: StudySource) -> StudySpec:
        names = [field.name for field in fields(protocol) if field.name != "study"]
        return cls(source, {name: getattr(protocol, name) for name in names})

    def unpack(self) -> StudyPlan:
        return StudyPlan(self.source.load().at(self.settings["preset"]), **self.settings)


def load_file(path: pathlib.Path) -> Study:
    """Execute a study file and return its ``study``."""
    if not path.is_file():
        raise UserError(f"there is no file {path}; contdrop compare --init {path} writes one to start from")
    spec = importlib.util.spec_from_file_location(f"contdrop_study_{path.stem}", path)
    if spec is None or spec.loader is None:
        raise UserError(f"{path}: expected a Python file, which ends with .py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # pickling and dataclasses look there
    directory = str(path.resolve().parent)
    sys.path.insert(0, directory)  # as Python does for a script
    try:
        with explained(f"{path}"):
            spec.loader.exec_module(module)
    finally:
        sys.path.remove(directory)
    _keep_importable(directory)
    found = getattr(module, "study", None)
    if isinstance(found, Study):
        return found
    named = [name for name, value in vars(module).items() if isinstance(value, Study)]
    if named:
        raise UserError(f"{path}: expected a study called study; there is {named[0]}: write study = {named[0]}")
    hint = suggest("study", [name for name in vars(module) if not name.startswith("_")])
    raise UserError(f"{path}: expected a line study = lab.Study(...); there is none ({hint})")


def _keep_importable(directory: str) -> None:
    """Make a directory importable, before installed packages and behind the standard library, not to hide it."""
    if directory not in sys.path:
        packages = ("site-packages", "dist-packages")
        installed = (place for place, each in enumerate(sys.path) if pathlib.Path(each).name in packages)
        sys.path.insert(next(installed, len(sys.path)), directory)


def _digest(path: pathlib.Path) -> bytes:
    return hashlib.sha256(path.read_bytes()).digest() if path.is_file() else b""
