"""With this folder on PYTHONPATH every Python process is on the golden mesh from its first `import ttnn` on.

Python imports a module of this name when it starts. The launcher (__main__.py of the golden mesh) sets
PYTHONPATH, GOLDEN_MESH (the system), GOLDEN_MESH_SWITCHES (switches.py) and GOLDEN_MESH_OBSERVER: a module with
`start`, and its arguments, as JSON.
A process has no overhead until it imports ttnn.
"""

import importlib
import importlib.util
import json
import os
import sys
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import PathFinder
from pathlib import Path

HERE = str(Path(__file__).resolve().parent)
SOURCE = str(Path(__file__).resolve().parents[2])


class _BeforeTtnn(MetaPathFinder, Loader):
    """Finds ttnn, and loads it as the golden mesh. importlib.util.find_spec("ttnn") loads nothing."""

    activates = True  # golden_mesh.activate() of the program leaves it to this finder

    def find_spec(self, name, path, target=None):
        spec = PathFinder.find_spec(name) if name == "ttnn" else None
        if spec is not None:
            spec.loader = self
        return spec

    def create_module(self, spec):
        sys.meta_path.remove(self)
        try:
            switches = json.loads(os.environ.get("GOLDEN_MESH_SWITCHES", "{}"))
            _golden_mesh().activate(os.environ["GOLDEN_MESH"], **switches)
            if "GOLDEN_MESH_OBSERVER" in os.environ:
                module, *settings = json.loads(os.environ["GOLDEN_MESH_OBSERVER"])
                importlib.import_module(module).start(*settings)
        except BaseException:
            sys.meta_path.insert(0, self)  # a second import must not return ttnn without the golden mesh
            raise
        self.spec = sys.modules["ttnn"].__spec__
        return sys.modules["ttnn"]

    def exec_module(self, module):
        module.__spec__ = self.spec  # the import system has set ours; the file was executed


def _golden_mesh():
    """Return the package that this folder is part of, installed or not."""
    sys.path.insert(0, SOURCE)
    try:
        return importlib.import_module("golden_mesh")
    finally:
        sys.path.remove(SOURCE)


def _run_the_one_behind() -> None:
    """Run the sitecustomize that this one hides, if there is one, under its name."""
    spec = PathFinder.find_spec("sitecustomize", [entry for entry in sys.path if entry != HERE])
    if spec is not None:
        module = sys.modules["sitecustomize"] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)


if "GOLDEN_MESH" in os.environ:
    sys.meta_path.insert(0, _BeforeTtnn())
_run_the_one_behind()
